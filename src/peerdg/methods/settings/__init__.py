"""The options of each method, one file per method, free of torch.

The command line reads these to build its flags, so they must import in no time. Each file defines
one frozen dataclass called `Settings`, a `MethodSettings`, and may have besides:

- `IMPLEMENTED_BY`: the class that implements the method, always.
- `TITLE`: how the method is written in sentences, if not like its name.
- `ALIASES`: what people type for its options, {"weight": "w"}.
- `KNOWN_AS`: what the literature calls the method with certain options.
- `TINY`: options for a run of a few seconds; the tests that run over all methods use them.
"""
