"""Write tables, figures and pages about runs."""
