"""One module per published protocol, with `load` and `verify`; `registry.py` names them all."""
