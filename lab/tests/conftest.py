"""The package's fixtures of tiny policies (tests/conftest.py), for the tests of the laboratory."""

from conftest import one_thread, shared_pool_closed, tiny_policy, warm_policy, write_recipe

__all__ = ["one_thread", "shared_pool_closed", "tiny_policy", "warm_policy", "write_recipe"]
