"""es-status --web in a real browser: a run that trains is seen to train, and hostile texts stay
texts.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue.protocol.keys import RUNS, RunKeys
from tests.archives import archived
from tests.faults.servers import free_port
from tests.integration.processes import BIN, CARTPOLE, Processes, Seen, Started, flags, wait_for

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed (pip install '.[dev]')"
)

ENDLESS = {**CARTPOLE, "generations": 100_000, "eval_every": 2, "eval_episodes": 2}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = '<img src=x onerror="document.title=1">"\'&</script><b>'
WIDE, NARROW = {"width": 1200, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The operating system's browser, else playwright's own; its tests are left out by name where
    there is none.
    """
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with playwright.sync_playwright() as play:
        if found is None and not Path(play.chromium.executable_path).exists():
            pytest.skip(
                "no browser is here: apt-get install chromium, or playwright install chromium"
            )
        one = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab that fails its test where a script raised or the page's policy was broken."""
    tab, said = browser.new_page(viewport=WIDE), list[str]()
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on(
        "console", lambda message: said.append(message.text) if message.type == "error" else None
    )
    yield tab
    tab.close()
    assert [text for text in said if "Failed to load resource" not in text] == []


def served(processes: Processes, url: str, *more: object) -> tuple[str, Started]:
    address = f"127.0.0.1:{free_port()}"
    process = processes.start(
        BIN / "es-status", *more, "--web", address, "--every", "0.3", "--redis-url", url
    )
    wait_for(lambda: "http://" in process.out.read_text(), "the page is served")
    return process.out.read_text().split()[0].partition("#")[0], process


def tile(page: Any, label: str) -> str:
    """The large figure under a label."""
    return str(
        page.locator("#tiles > div", has=page.get_by_text(label, exact=True))
        .locator("dd > span")
        .inner_text()
    )


def looks_until(page: Any, condition: Any, what: str) -> Any:
    """Wait with the browser's own loop running."""
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, (
            f"{what}: not within 60 s; the page says {page.locator('body').inner_text()[:2000]}"
        )
        page.wait_for_timeout(50)
    return found


def overflow(page: Any) -> int:
    """Pixels by which the page is wider than the screen."""
    return int(
        page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    )


def test_a_run_is_seen_to_train_to_pause_and_to_end(
    processes: Processes, redis_client: redis.Redis, valkey_url: str, page: Any
) -> None:
    master = processes.master("--run", "seen", *flags(ENDLESS), url=valkey_url)
    processes.worker(valkey_url)
    wait_for(Seen(redis_client, "seen").has_reached(6), "some generations are done")
    url, status = served(processes, valkey_url)
    page.goto(url)
    looks_until(page, lambda: page.locator("#pulse.live").count(), "the first look")
    assert (
        page.locator("#list .run").all_inner_texts() == ["seen"]
        and page.locator("#state").inner_text() == "running"
    )
    first = int(tile(page, "generation").replace(",", ""))
    curve = page.locator("#chart .eval").get_attribute("d")
    looks_until(
        page,
        lambda: int(tile(page, "generation").replace(",", "")) > first + 1,
        "generations go by",
    )
    looks_until(
        page, lambda: page.locator("#chart .eval").get_attribute("d") != curve, "the curve grows"
    )
    assert tile(page, "workers") == "1" and page.locator("#workers tbody tr").count() == 1
    assert "CartPole-v1" in page.locator("#settings").inner_text()
    asking = processes.start(BIN / "es-master", "--pause", "seen", "--redis-url", valkey_url)
    assert asking.wait() == 0
    looks_until(page, lambda: page.locator("#state").inner_text() == "paused", "it is paused")
    master.signal(signal.SIGINT)
    assert master.wait() == 130
    looks_until(page, lambda: page.locator("#pulse").inner_text() == "ended", "it is ended")
    assert page.locator("#state").inner_text() == "stopped"
    assert not page.locator("#workers").is_visible()
    status.signal(signal.SIGINT)
    assert status.wait() == 130 and status.err.read_text() == ""
    looks_until(
        page,
        lambda: (
            page.locator("#pulse.lost").count()
            and "no longer answers" in page.locator("#trouble").inner_text()
        ),
        "the page's server has gone",
    )


def planted(client: Any, run: str, generations: int = 40, **progress: str) -> None:
    """A run as a master writes it."""
    own = RunKeys(run)
    client.zadd(RUNS, {run: time.time() - 60})
    client.set(own.master, "host pid 1", px=120_000)
    client.set(
        own.config,
        json.dumps(
            {
                "env": "CartPole-v1",
                "strategy": "pgpe",
                "seed": generations,
                "target_reward": "475",
                "max_steps": 90_000,
            }
        ),
    )
    client.hset(
        own.progress,
        mapping={
            "state": "running",
            "env": "CartPole-v1",
            "strategy": "pgpe",
            "generation": generations,
            "updated": time.time(),
            **progress,
        },
    )
    for one in range(generations):
        client.xadd(
            own.history,
            {
                "generation": one,
                "env_steps": 1000 * one,
                "seconds": 20 * one,
                "return_mean": 9 * one,
                "return_std": 3,
                **({"eval_mean": 10 * one, "eval_std": 20} if one % 5 == 0 else {}),
            },
        )


def test_runs_are_laid_over_each_other_and_compared(
    processes: Processes, redis_client: redis.Redis, valkey_url: str, page: Any
) -> None:
    for number, run in enumerate(("alpha", "beta", "gamma")):
        planted(redis_client, run, 30 + 10 * number)
    url, _ = served(processes, valkey_url, "beta")
    page.goto(f"{url}#run=beta")
    looks_until(page, lambda: page.locator("#chart .eval").count() == 1, "one curve")
    page.get_by_label("curve of alpha").check()
    page.get_by_label("curve of gamma").check()
    looks_until(page, lambda: page.locator("#chart .eval").count() == 3, "three curves")
    colors = page.locator("#chart .eval").evaluate_all(
        "all => all.map((one) => one.getAttribute('stroke'))"
    )
    assert (
        len(set(colors)) == 3
        and page.locator("#chart .band").count() == 3
        and page.locator("#chart .target").count() == 1
    )
    assert page.locator("#comparison th").all_inner_texts() == ["", "beta", "alpha", "gamma"]
    assert (
        "seed" in page.locator("#comparison").inner_text()
        and "env\t" not in page.locator("#comparison").inner_text()
    )
    page.get_by_text("time", exact=True).click()
    looks_until(
        page,
        lambda: "x=seconds" in page.url and " min" in page.locator("#chart").text_content(),
        "over time",
    )
    page.locator("#training").uncheck()
    assert page.locator("#chart .train").count() == 0
    page.locator("#plot").hover()
    assert "beta: evaluation" in page.locator("#tip").inner_text()
    page.reload()
    looks_until(
        page, lambda: page.locator("#chart .eval").count() == 3, "the address keeps what was chosen"
    )


def test_the_seeds_of_a_study_are_one_band_and_any_recorded_figure_can_be_drawn(
    processes: Processes, redis_client: redis.Redis, valkey_url: str, page: Any
) -> None:
    for run in ("study-s1", "study-s2", "other"):
        planted(redis_client, run)
        redis_client.xadd(RunKeys(run).history, {"generation": 41, "env_steps": 5e4, "norm": 0.5})
    settings = {"env": "Pendulum-v1", "strategy": "snes", "sigma": 0.0, "hidden": [64, 64]}
    redis_client.set(RunKeys("other").config, json.dumps({**settings, "policy": "linear"}))
    redis_client.hset(RunKeys("other").progress, "env", "Pendulum-v1")
    redis_client.hset(RunKeys("other").progress, mapping={"state": "failed", "eta": 50})
    url, _ = served(processes, valkey_url)
    page.goto(f"{url}#run=study-s1")
    page.get_by_role("button", name="show all 2 seeds of study").click()
    looks_until(page, lambda: "study, 2 seeds" in page.locator("#legend").inner_text(), "a band")
    assert page.locator("#chart .eval").count() == page.locator("#chart .band").count() == 1
    page.get_by_label("seeds as a band").uncheck()
    assert page.locator("#chart .eval").count() == 2
    assert "different environments" not in page.locator("#legend").inner_text()
    page.get_by_label("curve of other").check()
    looks_until(page, lambda: "different env" in page.locator("#legend").inner_text(), "a remark")
    compared = page.locator("#comparison").inner_text()
    assert "sigma\t\t\tauto" in compared and "64, 64" not in compared
    page.locator("#figure").select_option("norm")
    looks_until(page, lambda: "y=norm" in page.url, "the figure is in the address")
    looks_until(page, lambda: page.locator("#chart circle").count() == 3, "three points of norm")
    page.goto(f"{url}&#run=other")
    looks_until(page, lambda: page.locator("#state").inner_text() == "failed", "it is shown")
    assert tile(page, "time left") == "–"


def test_a_click_on_the_map_of_an_archive_shows_the_elite_and_how_to_play_it(
    processes: Processes, redis_client: redis.Redis, valkey_url: str, page: Any, tmp_path: Path
) -> None:
    planted(redis_client, "arms")
    settings = {"env": "CartPole-v1", "strategy": "map_elites", "cells": (2, 4)}
    archived(tmp_path / "arms", [[0.2, 0.1], [0.9, 0.7]], [5.0, -7.0], **settings)
    redis_client.set(RunKeys("arms").config, json.dumps(settings))
    url, _ = served(processes, valkey_url, "--runs-dir", tmp_path)
    page.goto(f"{url}#run=arms")
    looks_until(page, lambda: page.locator("#map").is_visible(), "the map")
    assert page.locator("#filled").inner_text() == "2 of 8 cells · QD score -2.00"
    frame = page.locator("#map").bounding_box()

    def click(across: float, down: float) -> list[str]:
        place = {"x": across * frame["width"], "y": down * frame["height"]}
        page.locator("#map").click(position=place)
        texts: list[str] = page.locator("#elite dd").all_inner_texts()
        return texts

    assert click(0.8, 0.3) == ["-7.00", "0.9, 0.7", "6"]
    assert click(0.2, 0.9) == ["5.00", "0.2, 0.1", "0"]
    assert page.locator("#play code").inner_text().endswith("arms --cell=0.25,0.125")
    assert click(0.2, 0.1) == []
    assert not page.locator("#play").is_visible()
    page.set_viewport_size(NARROW)
    assert overflow(page) <= 0
    file = next(tmp_path.glob("arms/checkpoints/*.npz"))
    file.write_bytes(file.read_bytes()[:-90])
    redis_client.hset(RunKeys("arms").progress, "generation", "41")
    looks_until(
        page,
        lambda: "has no archive" in page.locator("#filled").inner_text(),
        "it cannot be read any more",
    )


def test_hostile_texts_are_shown_as_they_are_and_nothing_is_too_wide(
    processes: Processes, redis_client: redis.Redis, valkey_url: str, page: Any
) -> None:
    own, client = RunKeys("walker-1"), redis_client
    planted(
        client,
        "walker-1",
        state=HOSTILE,
        env=HOSTILE * 9,
        why=HOSTILE,
        changed=HOSTILE,
        answered="1/x",
        eta="nan",
        eval_mean="1e999",
    )
    client.set(
        own.config,
        json.dumps(
            {
                "env": HOSTILE,
                "__proto__": HOSTILE,
                HOSTILE: [HOSTILE, {"a": HOSTILE}],
                "target_reward": HOSTILE,
            }
        ),
    )
    client.sadd(own.workers, HOSTILE, "w2")
    client.hset(
        own.worker(HOSTILE),
        mapping={"host": HOSTILE * 4, "pid": HOSTILE, "block": HOSTILE, "refuses": HOSTILE},
    )
    client.hset(own.refused, mapping={HOSTILE: 3})
    client.rpush(
        own.errors,
        json.dumps({"worker": HOSTILE, "reason": HOSTILE, "trace": HOSTILE}),
        b"\xff\x00",
    )
    client.xadd(
        own.history,
        {
            "generation": 50,
            "env_steps": "1e308",
            "return_mean": "-1e308",
            "eval_mean": "nan",
            "seconds": HOSTILE,
        },
    )
    url, _ = served(processes, valkey_url)
    for size in (WIDE, NARROW):
        page.set_viewport_size(size)
        page.goto(f"{url}&{size['width']}#run=walker-1")
        looks_until(
            page, lambda: HOSTILE[:20] in page.locator("#refusing").inner_text(), "the run is shown"
        )
        page.locator("#reports summary").click()
        looks_until(
            page,
            lambda: HOSTILE[:20] in page.locator("#traces").inner_text(),
            "its reports are shown",
        )
        assert page.locator("img, b, script:not([src])").count() == 0 and page.title() != "1"
        assert overflow(page) <= 0
    page.goto(f"{url}#run={HOSTILE}&with=../x%20%00&x=y")
    looks_until(
        page,
        lambda: "there is no run" in page.locator("#trouble").inner_text(),
        "a made-up run is none",
    )
