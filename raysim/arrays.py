"""Names NumPy's arrays by the dtype of their numbers, for annotations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Float64s = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
