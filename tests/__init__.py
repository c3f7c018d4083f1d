"""The tests. Asserts in what they share are explained as their own are."""

import pytest

pytest.register_assert_rewrite("tests.support")
