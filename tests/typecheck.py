"""The type checker of the tests: beartype, where an int passes for a float as it does for pyright."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
