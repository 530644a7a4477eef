"""What a server says of its KV integrity check: /integrity, readiness and metrics."""

from __future__ import annotations

import time

import pytest
from starlette.datastructures import QueryParams

from octavo_runtime.contract import metrics as names
from octavo_runtime.engine.messages import Violation
from octavo_runtime.server.errors import ApiError
from octavo_runtime.server.integrity import VIOLATIONS_KEPT, RecentViolations, after_of, doubt
from tests.runtime.server.echo import RECOVER, STALL, VIOLATE, VIOLATION_TIME, never_starts, program
from tests.runtime.server.serving import serving


def violation(id: int) -> Violation:  # noqa: A002
    return Violation(id, float(id), 1, "table", ("tag",), "r", (1,), "cancelled")


def test_only_the_last_violations_are_kept_and_all_are_counted() -> None:
    recent = RecentViolations()
    recent.add([violation(one) for one in range(1, 8)])
    recent.add([violation(one) for one in range(8, VIOLATIONS_KEPT + 6)])
    kept = [one.id for one in recent.after(0)]
    assert kept == list(range(6, VIOLATIONS_KEPT + 6))
    assert [one.id for one in recent.after(VIOLATIONS_KEPT + 3)] == [VIOLATIONS_KEPT + 4, VIOLATIONS_KEPT + 5]
    assert recent.count == VIOLATIONS_KEPT + 5
    assert recent.last == violation(VIOLATIONS_KEPT + 5)
    assert doubt(None, recent, VIOLATIONS_KEPT + 6) is None


async def test_violations_are_listed_and_can_be_read_on_from_the_last_one_seen() -> None:
    before = time.time()
    async with serving() as server:
        empty = (await server.http.get("/integrity")).json()
        assert (empty["mode"], empty["stalled"], empty["violations"]) == ("enforce", False, [])
        assert before <= empty["engine_started"] <= time.time()
        exposition = (await server.http.get("/metrics")).text.splitlines()
        assert f'{names.INTEGRITY_INFO}{{mode="enforce",page_size="64"}} 1.0' in exposition
        assert not any(line.startswith(names.INTEGRITY_LAST_VIOLATION) for line in exposition), "never is no time"

        for _ in range(3):
            await server.complete(VIOLATE)
        report = (await server.http.get("/integrity")).json()
        assert [one["id"] for one in report["violations"]] == [1, 2, 3]
        first = report["violations"][0]
        assert first.pop("request").startswith("cmpl-")
        assert first.pop("step") >= 0
        assert first == {
            "id": 1,
            "time": VIOLATION_TIME + 1,
            "kind": "tag,binding",
            "site": "table",
            "pages": [3, 4],
            "action": "reported",
        }
        assert report["violations_total"] == {"tag": 5}
        assert report["checks"] > 0
        assert report["engine_started"] == empty["engine_started"]
        assert await server.metric(names.INTEGRITY_LAST_VIOLATION) == VIOLATION_TIME + 3
        later = (await server.http.get("/integrity", params={"after": "2"})).json()
        assert [one["id"] for one in later["violations"]] == [3]
        assert (await server.http.get("/integrity", params={"after": "99"})).json()["violations"] == []
        assert (await server.http.get("/ready")).status_code == 200, "violations alone change no readiness"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("after=", "after must be the id of one violation, a whole number; got ''"),
        ("after=-1", "got '-1'"),
        ("after=1.5", "got '1.5'"),
        ("after=1&after=2", "got '1' and '2'"),
        ("after=" + "9" * 19, "got '9999"),
        ("since=4", "since is no parameter of /integrity"),
    ],
)
def test_nonsense_after_which_to_list_is_refused(query: str, said: str) -> None:
    with pytest.raises(ApiError) as refused:
        after_of(QueryParams(query))
    assert refused.value.param == query.partition("=")[0]
    assert said in refused.value.message


async def test_while_loading_there_is_nothing_to_list_and_nonsense_is_refused_all_the_same() -> None:
    async with serving(program(never_starts), ready=False) as server:
        report = (await server.http.get("/integrity")).json()
        assert (report["checks"], report["violations_total"], report["violations"]) == (0, {}, [])
        refused = await server.http.get("/integrity?after=x")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")


async def test_a_stalled_check_fails_readiness_until_it_speaks_again_and_never_liveness() -> None:
    async with serving() as server:
        await server.complete(STALL)
        ready = await server.http.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "integrity check stalled")
        assert (await server.http.get("/health")).status_code == 200
        assert (await server.http.get("/integrity")).json()["stalled"] is True
        assert await server.metric(names.INTEGRITY_STALLED) == 1
        assert (await server.complete("echo a")).status_code == 200, "who still asks is answered"
        await server.complete(RECOVER)
        assert (await server.http.get("/ready")).status_code == 200
        assert await server.metric(names.INTEGRITY_STALLED) == 0


async def test_so_many_violations_as_were_asked_for_fail_readiness_and_nothing_else() -> None:
    async with serving(unready_after_violations=2) as server:
        await server.complete(VIOLATE)
        assert (await server.http.get("/ready")).status_code == 200
        await server.complete(VIOLATE)
        ready = await server.http.get("/ready")
        assert ready.status_code == 503
        assert ready.json()["status"] == "2 integrity violations (--unready-after-violations 2)"
        assert (await server.http.get("/health")).status_code == 200
        assert (await server.complete("echo a")).status_code == 200
