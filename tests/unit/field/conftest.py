"""Hosts over device trees."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.fakes.host import Host
from tests.fakes.tree import Tree

Make = Callable[..., Host]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Make]:
    made: list[Host] = []

    def make(tree: str, *ports: str, before: Mapping[str, object] | None = None, **options: object) -> Host:
        laid = Tree(tmp_path / str(len(made)), tree)
        for path, value in (before or {}).items():  # what the host was like when the agent started
            laid.put(path, value)
        one = Host(laid, ports, **options)  # type: ignore[arg-type]
        made.append(one)
        one.look()
        return one

    yield make
    for one in made:
        one.close()
