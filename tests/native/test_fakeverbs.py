"""The fake verbs library has the semantics that its users rely on; also under the sanitizers."""

import pytest

from tests.native.building import BUILD_SECONDS, KINDS, built, run_checks

PROGRAMS = ("fakeverbs_transfer", "fakeverbs_fault", "fakeverbs_error", "fakeverbs_many", "fakeverbs_threads")


@pytest.mark.timeout(BUILD_SECONDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_fake_verbs_program_passes(kind: str, program: str) -> None:
    folder = built(kind, PROGRAMS)
    run_checks(folder / "fakeverbs" / program)
