"""The options of each method, one file per method, free of torch.

The command line reads these to build its flags, so they must import in no time. Each file defines
one frozen dataclass called `Settings` and names the class that implements it in `IMPLEMENTED_BY`.
`Settings.augments` says whether the method uses the augmentation of the run.
"""
