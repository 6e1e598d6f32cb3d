#!/usr/bin/env python3
"""Makes tests/golden/npy/: small files written by NumPy, the outside truth of test_npy."""
import io
import pathlib

import numpy as np
from numpy.lib import format as npy

OUT = pathlib.Path(__file__).parent / "npy"


def save(name, array, version=(1, 0)):
    buffer = io.BytesIO()
    npy.write_array(buffer, array, version=version)
    (OUT / name).write_bytes(buffer.getvalue())


def main():
    OUT.mkdir(exist_ok=True)
    for code in ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]:
        save(f"{code}.npy", np.arange(6).reshape(2, 3).astype("<" + code))
    save("b1.npy", np.array([True, False, True]))
    save("scalar.npy", np.array(2.5, dtype="<f4"))
    save("empty.npy", np.zeros((0, 4), dtype="<f4"))
    save("rank8.npy", np.zeros((1, 2, 1, 2, 1, 2, 1, 2), dtype="<u1"))
    save("v2.npy", np.arange(4, dtype="<f4"), version=(2, 0))
    save("v3.npy", np.arange(4, dtype="<f4"), version=(3, 0))
    save("rank9.npy", np.zeros((1,) * 9, dtype="<u1"))
    save("fortran.npy", np.asfortranarray(np.arange(6, dtype="<f4").reshape(2, 3)))
    save("big.npy", np.arange(3, dtype=">f4"))
    save("complex.npy", np.zeros(2, dtype="<c8"))
    save("record.npy", np.zeros(2, dtype=[("a", "<f4"), ("b", "<i4")]))
    save("text.npy", np.array(["ab", "c"]))


if __name__ == "__main__":
    main()
