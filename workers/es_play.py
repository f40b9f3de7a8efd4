"""es-play: plays a trained policy; without flags it repeats the run's final evaluation.

Numpy must not be imported before its threads are fixed, so functions import what needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

from es_queue.command_line import CommandParser, add_options, add_runs_folder, add_version
from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED, EsQueueError, UsageError
from es_queue.numerics.fingerprint import fix_numeric_environment
from es_queue.pretrained import path_of
from es_queue.run_folder import BEST, checkpoint_path
from es_queue.text import sanitize
from es_queue.user_code import EVERYTHING, allowing, leave_current_folder

LONGEST_ERROR = 4000
MAX_EPISODES = 1_000_000
#: Environment seeds are int32.
SEED_LIMIT = 2**31
EPILOG = """\
Without --episodes and --seed, es-play repeats the run's final evaluation. On a
machine with equal arithmetic, the mean equals the recorded one to the last
digit.

examples:
  es-play runs/RUN                          the final evaluation again
  es-play runs/RUN --record walk.gif        a film, without a screen
  es-play runs/RUN --export policy.onnx     the policy for other programs
  es-play runs/RUN --cell 0.2,0.5           the elite of map_elites that behaves so
  es-play --pretrained BipedalWalker-v2     a bundled policy

exit codes: 0 done, 2 bad usage, 5 environment, 6 checkpoint, 130 interrupted
"""


def main(argv: list[str] | None = None) -> int:
    fix_numeric_environment()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ± is no reason to fail
    try:
        given = parse_arguments(argv)
        given.out, printed = sys.stdout, sys.stderr if given.json else sys.stdout
        with allowing([EVERYTHING] if given.trust else []), redirect_stdout(printed):
            play_and_print(given)
        sys.stdout.flush()
    except EsQueueError as error:
        print(f"es-play: {sanitize(' '.join(str(error).split()), LONGEST_ERROR)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python would fail once more on what is left in the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_DONE


#: Options with their help, as ``add_options`` reads them.
OPTIONS = f"""
checkpoint CHECKPOINT
    an .npz checkpoint, a .json seed list, or a run's name or folder (its {BEST})
--pretrained ENV
    play a bundled policy instead of CHECKPOINT
--export FILE
    write the policy to a file and play nothing: FILE.onnx, FILE.pt2 (torch), FILE.npz (for
    load_policy), FILE.json (seed list of strategy ga), or FILE.safetensors (weights of a --model)
--card DIR
    write a Hugging Face model repository into a new folder and play nothing: README.md with the
    final evaluation, the policy as .npz and .onnx, and the settings
--which
    which checkpoint of a run's folder: the best, or the last (newest) [default: best]
--generation G
    play the unperturbed policy of a generation that a run's folder has a checkpoint or a record of,
    or with --slot one of its individuals
--slot K+|K-
    with --generation: the individual of slot K with positive (K+) or negative (K-) noise, on its
    own episodes
--cell X,Y
    play the elite of map_elites whose cell contains this behaviour, else the nearest elite, from
    the run's newest checkpoint
--record FILE
    film the episodes (one unless --episodes is given) as .gif or .mp4; needs no screen
--episodes N
    number of episodes [default: as in the run's final evaluation]
--seed S
    environment seed of the first episode; the next has S+1 [default: the final evaluation's seeds]
--stochastic
    add the action noise of training (--action-noise); a seed always draws the same
--env-arg NAME=VALUE
    argument for the environment's constructor in place of the run's, such as camera_name=side for a
    film of MuJoCo; repeatable
--caption
    with --record: write step and return into the film
--render
    show the episodes in a window
--trust
    import the modules that CHECKPOINT names, also from the current folder; their code runs on this
    machine [default: only those in ES_QUEUE_ALLOW]
--json
    print one JSON object
"""


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = CommandParser("es-play", "Play a trained policy.", epilog=EPILOG)
    add_options(
        parser,
        OPTIONS,
        checkpoint={"nargs": "?", "type": Path},
        which={"choices": ("best", "last")},
        render={"choices": ("human",)},
        cell={"action": "append", "default": []},
        env_arg={"action": "append"},
        **{name: {"type": Path} for name in ("export", "card", "record")},
        **{name: {"type": int} for name in ("episodes", "seed")},
    )
    add_runs_folder(parser)
    add_version(parser)
    given = parser.parse_words(argv)
    if (given.checkpoint is None) == (given.pretrained is None):
        raise UsageError(f"give either a CHECKPOINT or --pretrained ENV; {parser.advice}")
    if given.episodes is not None and not 1 <= given.episodes <= MAX_EPISODES:
        raise UsageError(
            f"--episodes is {given.episodes}: use a whole number from 1 to {MAX_EPISODES}"
        )
    if len(given.cell) > 1:
        raise UsageError("--cell is given twice: es-play plays one elite, so give it once")
    given.cell = given.cell[0] if given.cell else None
    validate_arguments(given)
    if given.seed is not None and not 0 <= given.seed < SEED_LIMIT:
        raise UsageError(f"--seed is {given.seed}: use a whole number from 0 to {SEED_LIMIT - 1}")
    return given


def validate_arguments(given: argparse.Namespace) -> None:
    """Raises UsageError for options that cannot be combined."""
    if given.slot is not None and given.generation is None:
        raise UsageError("--slot names an individual of a generation: add --generation")
    last = "which" if given.which == "last" else ""
    export = "export" if given.export else "generation" if given.generation is not None else ""
    for reason, first, *others in (
        ("--slot plays the individual's own episodes", "slot", "seed", "episodes"),
        ("--cell names an elite of a run's archive", "cell", "pretrained", "generation", "card"),
        ("--cell names an elite of the newest checkpoint", "cell", "which"),
        ("--card writes the policy of a checkpoint", "card", export),
        ("--env-arg is for an environment that plays", "env_arg", "export", "card"),
        ("--generation names the policy already", "generation", "export", last),
        *(
            ("--stochastic plays the best or last checkpoint", "stochastic", name)
            for name in ("export", "card", "generation")
        ),
    ):
        is_given = getattr(given, first) not in (None, False)
        for name in filter(None, others):
            if is_given and getattr(given, name) is not None:
                raise UsageError(f"{reason}: leave --{name} out")
    if given.pretrained is not None and (given.generation is not None or last):
        raise UsageError(
            "--pretrained names the policy already: leave --generation and --which out"
        )
    if given.record is not None and given.render:
        raise UsageError("--render shows the episodes and --record films them: give one of the two")
    if given.caption and given.record is None:
        raise UsageError("--caption is written into a film: add --record FILE")


def play_and_print(given: argparse.Namespace) -> None:
    # start-up: numpy
    from workers import playback
    from workers.policy_files import export_policy, find_elite, load_checkpoint, write_model_card

    if given.record is not None:
        playback.validate_recording(given.record)
        playback.choose_offscreen_drawing()
        given.episodes = given.episodes or (1 if given.slot is None else None)
    if given.pretrained is not None:
        path = path_of(given.pretrained)
    elif given.generation is not None:
        snapshot = playback.find_snapshot(given)
        if snapshot is None:
            playback.show_individual(given)
            return
        path = snapshot
    else:
        which = given.which or "best" if given.cell is None else "last"
        path = checkpoint_path(given.checkpoint, which, given.runs_dir)
    elite = None if given.cell is None else find_elite(path, given.cell)
    if given.export and given.export.suffix == ".safetensors":
        # start-up: torch
        from es_queue.models.snapshots import export_model

        export_model(path, given.export)
    elif given.export:
        export_policy(path, given.export, elite)
    elif given.card:
        write_model_card(path, given.card)
    else:
        checkpoint = load_checkpoint(path, elite)
        if given.render:
            playback.validate_display()
        playback.show_policy(given, checkpoint, None if elite is None else elite.about)


if __name__ == "__main__":
    leave_current_folder()
    sys.exit(main())
