"""The numeric environment: what processes are told so that machines agree to the bit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

import es_queue
from es_queue.numerics import fingerprint
from tests.cases import each_case

ROOT = Path(es_queue.__file__).resolve().parent.parent
AVX2 = "processor : 0\nflags\t\t: fpu avx avx2 fma\n"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names x86 features")
@each_case(("cpuinfo", "told"), [(AVX2, "Haswell"), (AVX2.replace("avx2", ""), None), ("", None)])
def test_only_a_processor_with_avx2_is_told_haswell(
    tmp_path: Path, cpuinfo: str, told: str | None
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert fingerprint.numeric_environment(tmp_path / "cpuinfo").get("OPENBLAS_CORETYPE") == told


def clean(code: str) -> subprocess.CompletedProcess[str]:
    """What a new Python says to the code when the user has set nothing."""
    surroundings = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], env=surroundings, capture_output=True, text=True, check=False
    )


def test_numpy_understands_every_name_that_we_disable() -> None:
    done = clean(
        "from es_queue.numerics.fingerprint import fix_numeric_environment as fix; fix(); "
        "import warnings; warnings.simplefilter('error'); import numpy"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_blas_keeps_to_one_thread() -> None:
    fingerprint.limit_blas_threads()
    fingerprint.limit_blas_threads()
    assert {one["num_threads"] for one in threadpool_info()} <= {1}
