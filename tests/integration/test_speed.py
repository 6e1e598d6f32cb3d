"""Figures that issues name. Printed always; asserted with room for a noisy machine, since timing never decides a test:
what is asserted is that the answer is right and the figure was measured."""
import os
import re
import subprocess

import harness
from harness import BIN, MODELS, Fleet


def test_hop_bench_runs():
    done = subprocess.run([BIN / "bench_hop"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and re.search(r"median_us=\d", done.stdout), done
    print("    " + done.stdout.strip())
