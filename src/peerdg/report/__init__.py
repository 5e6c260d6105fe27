"""Tables, figures and pages made from run folders.

May import: `evaluate`, `train` and what they may import. Reads run folders, never trains.
"""
