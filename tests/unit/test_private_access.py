"""Tests use the public face of our objects: nobody else's attribute begins with an underscore."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
#: What has no public face: attributes of other libraries, steps that only a test takes by
#: themselves, and the helpers that do it for many tests. The numbers may only fall.
EXCEPTIONS = {
    "tests/abuse/test_forged_seconds.py": 2,
    "tests/abuse/test_memory_limit.py": 1,
    "tests/contract/test_lost_replies.py": 1,
    "tests/deploy/test_monitoring.py": 1,
    "tests/docs/test_docs_flags.py": 2,
    "tests/faults/test_interleavings_workers.py": 1,
    "tests/faults/test_waits.py": 1,
    "tests/integration/test_embedded.py": 1,
    "tests/integration/test_local_workers.py": 1,
    "tests/parts.py": 1,
    "tests/ring.py": 1,
    "tests/unit/es_queue/environments/gym_compat/test_old_gym.py": 1,
    "tests/unit/es_queue/environments/test_behaviour_descriptor.py": 1,
    "tests/unit/es_queue/environments/test_factory_backends.py": 1,
    "tests/unit/es_queue/export/test_export.py": 1,
    "tests/unit/es_queue/genetics/test_mutation_chain.py": 2,
    "tests/unit/es_queue/numerics/test_slot_plan.py": 1,
    "tests/unit/es_queue/policies/layers/test_virtual_norm.py": 1,
    "tests/unit/es_queue/strategies/test_ga_strategy.py": 1,
    "tests/unit/master/collect/collector_bench.py": 4,
    "tests/unit/master/collect/test_audit.py": 4,
    "tests/unit/master/collect/test_verification.py": 2,
    "tests/unit/master/fleet/test_seat_manager.py": 2,
    "tests/unit/master/fleet/test_worker_registry.py": 1,
    "tests/unit/master/loop/test_asynchronous.py": 2,
    "tests/unit/master/loop/test_generation_loop.py": 1,
    "tests/unit/master/collect/test_result_arrays.py": 2,
    "tests/unit/master/services/test_supervisor.py": 1,
    "tests/unit/master/status/test_status_command.py": 1,
    "tests/unit/master/status/web/test_web_server.py": 2,
    "tests/unit/workers/living.py": 1,
    "tests/unit/workers/test_block_worker.py": 2,
    "tests/unit/workers/test_hardened_worker.py": 5,
    "tests/unit/workers/test_heartbeat_limits.py": 1,
    "tests/unit/workers/test_heartbeat_masterless.py": 1,
}


def private_accesses(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Each attribute with an underscore of anything but ``self`` and ``cls``."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                yield node


def test_tests_reach_into_no_private_attribute() -> None:
    accesses = {
        str(path.relative_to(HOUSE)): [
            f"{node.lineno}: {ast.unparse(node)}"
            for node in private_accesses(ast.parse(path.read_text("utf-8")))
        ]
        for path in sorted((HOUSE / "tests").rglob("*.py"))
    }
    counts = Counter({path: len(found) for path, found in accesses.items() if found})
    assert {path: accesses[path] for path in counts - Counter(EXCEPTIONS)} == {}


def test_every_private_attribute_is_seen() -> None:
    text = "a._b\nself._c\nself.d._e = cls._f\ng.__h__\ni()._j[0]._k()\n"
    names = sorted(node.attr for node in private_accesses(ast.parse(text)))
    assert names == ["_b", "_e", "_j", "_k"]
