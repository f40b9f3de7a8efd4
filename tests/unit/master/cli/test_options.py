"""The command line of es-master: what it takes, what wins over what, and what it says to
mistakes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from es_queue.config.recipes import format_recipe, resolve
from es_queue.config.run_config import (
    PARTS,
    POLICIES,
    STRATEGIES,
    RunConfig,
    every_setting,
    own_settings,
    users_of,
)
from es_queue.errors import UsageError
from es_queue.host import default_workers
from master.cli.flags import launch_names
from master.cli.main import main
from master.cli.options import parse_command_line
from master.run.launch import Launch
from master.run.training import train
from tests.cases import each_case

WALKER = "BipedalWalker-v3"


def parsed(*argv: str) -> dict[str, Any]:
    return parse_command_line(list(argv))[0]


def launched(*argv: str) -> Launch:
    return parse_command_line(list(argv))[1]


def refused(*argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_command_line(list(argv))
    assert caught.value.exit_code == 2
    sentence = str(caught.value)
    assert "\n" not in sentence and len(sentence) < 400
    return sentence


def toml(folder: Path, text: str) -> str:
    path = folder / "run.toml"
    path.write_text(text, "utf-8")
    return str(path)


def test_a_settings_file_that_names_code_needs_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ES_QUEUE_ALLOW", raising=False)
    path = toml(tmp_path, 'env = "physics:Cart-v0"\nwrapper = ["bodies:Heavy"]\n')
    with pytest.raises(UsageError, match=r"names the module 'physics'.*use --trust"):
        parse_command_line(["--config", path])
    assert parse_command_line(["--config", path, "--trust"])[0]["env"] == "physics:Cart-v0"
    own = ("--env", "physics:Cart-v0", "--wrapper", "bodies:Heavy")
    assert parse_command_line(["--config", path, *own])[0]["env"] == "physics:Cart-v0"


# --- flags


@each_case(
    ("words", "values"),
    [
        (["--max-steps", "1e7"], {"max_steps": 10_000_000}),
        (["--max-steps", "2.5M", "--sigma", "0.1"], {"max_steps": 2_500_000, "sigma": 0.1}),
        (["--hidden", "32,16"], {"hidden": (32, 16)}),
        (["--no-obs-norm"], {"obs_norm": False}),
        (["--env-arg", "a=3", "--env-arg", "b=x"], {"env_arg": (("a", 3), ("b", "x"))}),
        (["--reward-floor", "-1e3"], {"reward_floor": "-1e3"}),
        (
            ["--strategy", "map_elites", "--behaviour-bounds", "-1:1,0:4", "--cells", "8,9"],
            {"strategy": "map_elites", "behaviour_bounds": "-1:1,0:4", "cells": (8, 9)},
        ),
        (["--seed", "1", "--seed", "2"], {"seed": 2}),
    ],
)
def test_a_flag_becomes_a_value_of_its_fields_type(
    words: list[str], values: dict[str, Any]
) -> None:
    assert parsed(*words) == values


def test_every_field_of_the_configuration_has_its_flag() -> None:
    samples = {"int": "2", "float": "0.5", "bool": None, "list of numbers": "3"}
    special = {
        "env_arg": "a=1",
        "wrapper": "m:C",
        "step_limit": "9",
        "reward_floor": "1",
        "patience": "1,1",
        "stall": "1:1:1",
        "observe": "0",
        "bounds": "0:1",
        "behaviour_bounds": "0:1",
        "action_bins": "none",
        "fitness_cap": "none",
        "restart_deadlines": "none",
        "perturbation": "rank:2",
        **dict.fromkeys(
            (
                "sigma_schedule",
                "learning_rate_schedule",
                "decay_schedule",
            ),
            "constant",
        ),
    }
    for name, one in every_setting().items():
        allowed = [*one.choices] or [samples.get(one.kind, "auto")]
        if one.kind in ("int", "float") and (one.low or 0) > 0:
            allowed = [str(one.low)]
        sample = special.get(name) or allowed[0]
        words = [f"--{name.replace('_', '-')}"] + ([] if sample is None else [sample])
        assert set(parsed(*words)) == {name}


@each_case(
    ("words", "begins"),
    [
        (
            ["--population", "x"],
            "--population is 'x' in the command line: use a whole number from 2 to 1000000",
        ),
        (["--sigma", "nan"], "--sigma is nan in the command line"),
        (
            ["--strategy", "cma"],
            f"--strategy is 'cma' in the command line: use auto, {', '.join(STRATEGIES)} or "
            "module:Class",
        ),
        (["--env-arg", "size"], "--env-arg is 'size' in the command line: use key=value"),
        (["--workers", "-1"], "--workers is '-1' in the command line: use a whole number from 0"),
        (
            ["--run", ".Run"],
            "run is '.Run', but a name has 1 to 40 letters, digits, '-', '_' and '.'",
        ),
        (["--run-dir", ""], "--run-dir is empty: leave it out"),
        (["--run", "a", "--resume", "b"], "--run and --resume are both given"),
        (["--seed"], "argument --seed: expected one argument; es-master --help-all lists all "),
    ],
)
def test_a_bad_value_of_a_flag_is_refused_in_one_sentence(words: list[str], begins: str) -> None:
    assert refused(*words).startswith(begins)


def test_an_unknown_flag_is_refused_with_the_nearest_ones() -> None:
    assert refused("--learning-rat", "3").startswith(
        "the command line has the unknown flag '--learning-rat'; did you mean --learning-rate"
    )
    assert refused("--xyzzy").endswith("es-master --help-all lists all options")
    assert refused("--env", "CartPole-v1", "--name", "a").endswith(
        "unknown flag '--name'; use --run to name a new run, or --resume to continue one"
    )


@each_case(
    ("words", "says"),
    [
        (["--lr", "0.1"], "use --learning-rate"),
        (["--n-envs", "4"], "use --workers for the number of processes, or --population"),
        (["--policy", "MLP"], "(did you mean mlp?)"),
        (["--environment", "X-v0"], "did you mean --env?"),
    ],
)
def test_names_of_other_programs_are_answered_with_those_of_this_one(
    words: list[str], says: str
) -> None:
    assert says in refused(*words)


def test_flags_are_not_to_be_abbreviated() -> None:
    assert "unknown flag '--popul'; did you mean --population or" in refused("--popul", "4")


# --- launch


def test_the_redis_flag_wins_over_rqs_variable_and_that_over_the_usual_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert launched().redis_url is None
    monkeypatch.setenv("REDIS_URL", "redis://usual")
    assert launched().redis_url == "redis://usual"
    monkeypatch.setenv("RQ_REDIS_URL", "rediss://rq")
    assert launched().redis_url == "rediss://rq"
    assert launched("--redis-url", "unix:///flag").redis_url == "unix:///flag"


def test_a_password_is_shown_by_no_refusal_and_no_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "redis://:hunter2@host"
    assert "hunter2" not in repr(launched("--redis-url", secret))
    for words in (
        ["--redis-ulr", secret],
        [f"--redis-ulr={secret}"],
        [secret],
        ["--redis-url", "http://:hunter2@host"],
    ):
        assert "hunter2" not in refused(*words)
    monkeypatch.setenv("RQ_REDIS_URL", "hunter2")
    assert refused().startswith("RQ_REDIS_URL is not a Redis address: use redis://")


@each_case("columns", ["40", "80", "120", "300"])
def test_help_names_every_option_and_keeps_to_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as ended:
        parse_command_line(["--help-all"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert max(map(len, text.splitlines())) <= max(80, min(int(columns), 120))
    for name in [*every_setting(), *launch_names()]:
        listed = re.search(rf"^  (-h[^,]*, )?--{name.replace('_', '-')}\b(?!-)", text, re.MULTILINE)
        assert bool(listed) == (not users_of(name)), name
    for name in (*STRATEGIES, *POLICIES):
        assert f"\n  --help {name} " in text
    assert "put a password in RQ_REDIS_URL" in " ".join(text.split())


@each_case(("part", "topic"), [(part, kind) for part, kinds in PARTS.items() for kind in kinds])
def test_help_of_a_name_shows_what_it_adds(
    part: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_command_line(["--help", topic])
    shown = set(re.findall(r"^  --([a-z0-9-]+)", capsys.readouterr().out, re.MULTILINE))
    flags = {name.replace("_", "-") for name in own_settings(part, topic)}
    assert ended.value.code == 0 and shown == flags


@each_case(
    ("values", "flags", "fields"),
    [
        (
            {"population": 7, "strategy": "pgpe"},
            "--population is 7, but pgpe samples",
            "population is 7, but pgpe samples",
        ),
        (
            {"eval_every": 0, "target_reward": "300"},
            "--target-reward is 300, but --eval-every is 0 and only",
            "target_reward is 300, but eval_every is 0 and only",
        ),
        (
            {"env": "Pendulum-v1", "patience": "200,0.5"},
            "drop --patience or use --reward-shift",
            "drop patience or use reward_shift",
        ),
    ],
)
def test_an_error_names_flags_on_the_command_line_and_fields_in_python(
    values: dict[str, Any],
    flags: str,
    fields: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    values = {"env": "CartPole-v1", **values}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    assert main([*words, "--runs-dir", str(tmp_path)]) == 2
    assert flags in capsys.readouterr().err
    with pytest.raises(UsageError) as caught:
        train(RunConfig(**values), runs_dir=tmp_path)
    assert fields in str(caught.value) and "--" not in str(caught.value)


def test_an_error_names_an_option_of_train_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"continue it with resume \S*taken, or give another run$"):
        train(RunConfig(env="CartPole-v1"), run="taken", runs_dir=tmp_path)


# --- files


def test_a_file_takes_dashes_and_underscores_and_a_flag_wins_over_it(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        (
            'env = "X-v0"\nlearning-rate = 0.5\nmax_steps = 1e6\nreward_floor = -1\npopulation = '
            "8\n[env-arg]\nsize = 3\n"
        ),
    )
    assert parsed("--config", path, "--population", "16") == {
        "env": "X-v0",
        "learning_rate": 0.5,
        "max_steps": 1_000_000,
        "reward_floor": "-1",
        "population": 16,
        "env_arg": (("size", 3),),
    }


@each_case(
    ("text", "says"),
    [
        ("learning_rat = 1", "has the unknown option 'learning_rat'; did you mean learning_rate"),
        ("max-steps = 1\nmax_steps = 1", "has max_steps twice"),
        (
            'redis_url = "redis://:hunter2@host"',
            "has 'redis_url', which only the command line takes: use --redis-url",
        ),
        ("population = true", "population is True in "),
        (
            "seed = 1\nsigma = = 2",
            "run.toml cannot be used: it is not TOML: Invalid value (at line 2",
        ),
        ("seed = 1\nseed = 2", "it is not TOML: "),
        ("wrapper = " + "[" * 5000, "not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(tmp_path: Path, text: str, says: str) -> None:
    sentence = refused("--config", toml(tmp_path, text))
    assert says in sentence
    assert "run.toml" in sentence and not sentence.startswith("--")
    assert "hunter2" not in sentence


# --- what wins over what


def test_flag_wins_over_file_over_recipe_over_default(tmp_path: Path) -> None:
    path = toml(tmp_path, f'env = "{WALKER}"\nsigma = 0.3\neval_every = 5\n')
    config = resolve(parsed("--config", path, "--eval-every", "2"))
    assert (config.eval_every, config.sigma, config.average_decay, config.wall_limit) == (
        2,
        0.3,
        0.9,
        300.0,
    )


def test_flag_and_file_win_over_a_named_recipe_and_that_over_the_environments(
    tmp_path: Path,
) -> None:
    path = toml(tmp_path, "sigma = 0.3\nlearning_rate = 0.5\n")
    config = resolve(
        parsed("--env", WALKER, "--recipe", "ars-v2-t", "--config", path, "--learning-rate", "0.1")
    )
    assert (config.strategy, config.top, config.population, config.obs_clip) == ("ars", 4, 64, 0.0)
    assert (config.sigma, config.learning_rate, config.target_reward) == (0.3, 0.1, "303")
    assert "only the command line takes: use --recipe" in refused(
        "--config", toml(tmp_path, 'recipe = "ars-v1"')
    )


def test_another_strategy_takes_only_the_recipes_settings_for_all() -> None:
    config = resolve({"env": WALKER, "strategy": "ars"})
    assert (config.population, config.sigma) == (64, 0.0)
    assert (config.stall, config.observe, config.eval_every) == ("none", "all", 10)
    assert (config.target_reward, config.confirm_episodes) == ("303", 200)


@each_case("words", [["--env", WALKER], ["--env", "X-v0", "--recipe", "ars-v2"]])
def test_another_policy_has_biases_though_the_recipes_has_none(words: list[str]) -> None:
    for policy, biases in (("linear", False), ("mlp", True)):
        values, launch = parse_command_line([*words, "--policy", policy])
        assert resolve(values, launch.inherited).biases is biases


def test_recipe_none_starts_from_plain_defaults() -> None:
    values, launch = parse_command_line(["--env", WALKER, "--recipe", "none"])
    config = resolve(values, launch.inherited, with_recipe=launch.recipe != "none")
    assert config == RunConfig(env=WALKER)


def test_a_line_names_the_settings_that_come_from_recipes() -> None:
    assert format_recipe({"env": WALKER, "strategy": "pgpe"}) == (
        "settings from the recipe for BipedalWalker-v3 (--recipe none: plain defaults):\n"
        "  biases False, target_reward 303, target_margin 2, confirm_episodes 200",
    )
    values, launch = parse_command_line(["--env", "X-v0", "--recipe", "ars-v1", "--top", "8"])
    (note,) = format_recipe(values, launch.inherited, launch.recipe)
    head, _, lines = note.partition("\n")
    assert "from the recipe ars-v1 (" in head
    assert "sigma 0.03" in lines and "top" not in lines
    (walker,) = format_recipe({"env": WALKER})
    assert walker.count("\n") > 2 and max(map(len, walker.splitlines())) <= 96
    assert "restart_deadlines 6.5e5=0," in walker
    assert format_recipe({"env": "X-v0"}) == ()


def test_a_clash_with_the_recipe_says_where_the_other_half_comes_from() -> None:
    with pytest.raises(
        UsageError,
        match=(
            r"^target_reward is 240, but .* \(the recipe for LunarLanderContinuous-v3 sets "
            r"target_reward\)$"
        ),
    ):
        resolve({"env": "LunarLanderContinuous-v3", "eval_every": 0})
    with pytest.raises(UsageError, match=r"use an even number \(the recipe .* sets strategy\)$"):
        resolve({"env": "LunarLanderContinuous-v3", "population": 7})
    # Of the user's own settings, whatever the recipe says.
    with pytest.raises(UsageError, match=r"use the strategy \S[^()]*$"):
        resolve({"env": "CartPole-v1", "strategy": "random_search", "momentum": 0.5})


# --- resume


def test_a_resumed_run_refuses_what_would_change_it(tmp_path: Path) -> None:
    assert (
        "the command line has --sigma, --seed, but a resumed run can change only --final-episodes"
        in refused("--resume", "a", "--sigma", "1", "--seed", "2", "--generations", "5")
    )
    assert "has --policy, --biases, --strategy" in refused("--resume", "a", "--recipe", "ars-v1")
    assert "has --env, but" in refused("--resume", "a", "--config", toml(tmp_path, 'env = "X"'))


def test_more_workers_than_a_host_can_start_are_refused() -> None:
    most = 64 * default_workers()
    assert f"'{most + 1}' in the command line: use a whole number from 0 to {most}," in refused(
        "--env", "CartPole-v1", "--workers", str(most + 1)
    )
    with pytest.raises(UsageError, match=r"workers is 100000 in train\(\): use a whole number"):
        train(env="CartPole-v1", workers=100_000)
