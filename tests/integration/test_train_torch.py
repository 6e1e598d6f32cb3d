"""Training step by step against PyTorch: tests/conformance/train_torch.py, all cases."""
import os
import subprocess
import sys

import harness


def test_every_step_is_pytorchs():
    script = harness.ROOT / "tests/conformance/train_torch.py"
    words = [sys.executable, script, harness.BIN / "train_peer"] + (["--full"] if harness.FULL else [])
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    print(done.stdout)
    assert done.returncode == 0, [line for line in done.stdout.splitlines() if not line.startswith("ok")]
