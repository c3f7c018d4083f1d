"""Checks that a part of your own keeps the contract that built-in parts keep."""

from raysim.testing.check_part import check_part
from raysim.testing.purity_check import ContractError

__all__ = ["ContractError", "check_part"]
