"""The image fits the pods that run it, and is built from what is locked."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from brokerset_operator.resources.pod_parts import USER_ID
from brokerset_operator.resources.settings_files import DATA_FOLDER
from brokerset_operator.store_jobs.job_objects import STATUS_FILE
from brokerset_spark.termination import TERMINATION_LOG

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def _locked(name: str) -> dict[str, str]:
    text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", text, flags=re.MULTILINE))


def test_the_image_runs_as_the_user_that_pods_ask_for() -> None:
    """The user is a number, so that Kubernetes can tell that it is not root, and owns the data folder."""
    assert f"USER {USER_ID}:{USER_ID}\n" in DOCKERFILE
    assert f"chown {USER_ID}:{USER_ID} {DATA_FOLDER}\n" in DOCKERFILE


def test_nothing_gets_into_the_image_that_is_not_locked() -> None:
    """Every installation from the index checks hashes; our own wheel is installed without an index."""
    installs = [line for line in DOCKERFILE.splitlines() if "pip install" in line]

    assert len(installs) == 6
    for line in installs:
        assert "--require-hashes" in line or "--no-index" in line


def test_both_images_have_the_native_core() -> None:
    """It is copied into what both install, built from the locked crates, and the build fails without it."""
    assert "maturin build --release --locked" in DOCKERFILE
    for packages in ("packages", "spark-packages"):
        stage = DOCKERFILE.partition(f" AS {packages}\n")[2].partition("\nFROM ")[0]
        assert "COPY --from=native /wheel /wheel\n" in stage
    for image in ("spark", "runtime"):
        stage = DOCKERFILE.partition(f" AS {image}\n")[2].partition("\nFROM ")[0]
        assert "BROKERSET_NATIVE=require python -c" in stage


def test_both_images_run_as_the_same_user() -> None:
    """A job reads, and in a migration writes, the volume of a broker."""
    assert DOCKERFILE.count(f"USER {USER_ID}:{USER_ID}\n") == 2


def test_the_image_of_jobs_finds_its_compiled_kernels_again() -> None:
    """A cached kernel is found by processor and features, which a node must not change."""
    image = DOCKERFILE.partition("AS spark\n")[2].partition("\nFROM ")[0]
    settings, _, compiling = image.partition("kernels.compiled")

    assert compiling
    for name in ("NUMBA_CACHE_DIR", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        assert f"{name}=" in settings
    entrypoint = ROOT / "spark" / "entrypoint.sh"
    assert "COPY spark/entrypoint.sh" in image
    assert entrypoint.stat().st_mode & 0o111, "it is copied as it is"


def test_the_image_of_jobs_drives_spark_for_who_submits_to_the_cluster(tmp_path: Path) -> None:
    """Spark starts a driver's container with `driver` and options of spark-submit, which runs in the pod."""
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text('#!/bin/sh\nprintf "%s\\n" "$SPARK_HOME" "$@"\n')
    submit.chmod(0o755)
    environment = {**os.environ, "SPARK_HOME": str(tmp_path), "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7"}
    given = [
        "--properties-file",
        "/opt/spark/conf/spark.properties",
        "local:///x/__main__.py",
        "verify",
        "a b",
    ]

    done = subprocess.run(
        [ROOT / "spark" / "entrypoint.sh", "driver", *given],
        env=environment,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )

    assert done.stdout.splitlines() == [
        str(tmp_path),
        "--conf",
        "spark.driver.bindAddress=10.0.0.7",
        "--deploy-mode",
        "client",
        *given,
    ]


def test_what_the_image_of_jobs_is_told_it_runs() -> None:
    done = subprocess.run(
        [ROOT / "spark" / "entrypoint.sh", "echo", "driver", "a b"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )

    assert done.stdout == "driver a b\n"


def test_the_image_of_jobs_has_what_brokers_have_in_the_same_versions() -> None:
    """Both read and write the same files."""
    runtime, spark = _locked("runtime"), _locked("spark")

    assert runtime.items() <= spark.items()
    assert {"pyspark", "pyarrow", "numpy", "numba", "xxhash"} <= spark.keys()


def test_the_image_has_the_locked_versions_of_everything_else() -> None:
    """The operator's lock has what all parts run with, in the same versions, and the framework on top."""
    runtime, operator = _locked("runtime"), _locked("operator")

    assert runtime.items() <= operator.items()
    assert {"kopf", "cronsim", "tzdata"} <= operator.keys()
    assert {"hatchling", "maturin"} <= _locked("build").keys()
    assert _locked("build").items() <= _locked("dev").items()


def test_jobs_leave_their_last_words_where_the_operator_reads_them() -> None:
    """The image names the file for every pod of it; the operator's pods name the same one to Kubernetes."""
    image = DOCKERFILE.partition("AS spark\n")[2].partition("\nFROM ")[0]

    assert f" {TERMINATION_LOG}={STATUS_FILE}\n" in image


@pytest.mark.parametrize(
    ("given", "missing", "said"),
    [
        (["no-such-program", "x"], "", "the image has no program 'no-such-program'"),
        (["driver", "x"], "SPARK_DRIVER_BIND_ADDRESS", "the driver did not start: SPARK_DRIVER_BIND_ADDRESS"),
        (["executor"], "SPARK_DRIVER_URL", "the executor did not start: SPARK_DRIVER_URL is not set"),
    ],
)
def test_a_container_that_cannot_start_says_why(
    given: list[str], missing: str, said: str, tmp_path: Path
) -> None:
    """In a sentence for Kubernetes, with the exit code of a job that failed."""
    log = tmp_path / "log"
    environment = {
        **os.environ,
        "SPARK_HOME": "/none",
        "SPARK_EXECUTOR_MEMORY": "1g",
        TERMINATION_LOG: str(log),
    }
    environment.pop(missing, None)

    done = subprocess.run(
        [ROOT / "spark" / "entrypoint.sh", *given],
        env=environment,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )

    assert done.returncode == 2
    assert said in log.read_text()
    assert ". What to do: " in log.read_text()


def test_the_image_of_jobs_is_made_as_the_other_one_is() -> None:
    """One target of make for each, with any builder; the guides name it."""
    done = subprocess.run(
        ["make", "--dry-run", "image-spark", "IMAGE_SPARK=r.example.com/spark:1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
    )

    assert done.stdout.splitlines()[-1] == "SIGN_KEY= ./tests/image.sh r.example.com/spark:1 spark"
    for guide in (
        "docs/kubernetes/store-jobs.md",
        "docs/kubernetes/install.md",
        "charts/brokerset/README.md",
    ):
        text = (ROOT / guide).read_text(encoding="utf-8")
        assert "make image-spark" in text, guide
        assert "--target spark" not in text, guide
