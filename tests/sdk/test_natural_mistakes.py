"""What people type first, and what they are told: exit code, first line, and the next thing to try.

A mistake that was seen is one line of a table: its words, then the beginning of what is told, then what is advised.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.fake_service import FakeService
from tests.sdk.test_cli import call, live

__all__ = ["live"]  # a fixture

CODE = [
    ("run trian.py", "code: there is no file or folder 'trian.py'", "allpass run train.py"),
    ("run python train.py", "python is not code of yours; a command comes after --", "allpass run . -- python"),
    ("run torchrun train.py", "torchrun is not code of yours", "allpass run . -- torchrun"),
    ("run train.py -- python train.py", "what follows train.py are its arguments", "allpass run . -- python train.py"),
    ("run train.py --lr 0.1", "there is no option --lr", "allpass run train.py -- --lr 0.1"),
    ("run train.py --epochs=3", "there is no option --epochs", "allpass run train.py -- --epochs=3"),
    ("run . -- python trian.py", "command: trian.py is not among the", "allpass run . -- python train.py"),
    ("run . -- torchrun --nproc-per-node 2 trian.py --lr 1", "command: trian.py is not", "2 train.py --lr 1"),
    ("run . -- bash rnu.sh", "command: rnu.sh is not among", "allpass run . -- bash run.sh"),
    ("run . -- ./gone.sh", "command: ./gone.sh is not among", "from the folder that has it"),
    ("run README.md", "README.md: is not a script (.py or .sh)", "-- ./README.md"),
    ("run t.json", "t.json: is not a script", "--template t.json"),
    ("run cfg.yml", "cfg.yml: is not a script", "-- axolotl train cfg.yml"),
    ("run n.ipynb", "n.ipynb: is not a script", "jupyter nbconvert --to script n.ipynb"),
    ("run bad.py", "bad.py, line 1: ", "mend it"),
    ("run two.py", "two.py, line 1: ", "allpass run . -- python two.py"),
    ("run . --entrypoint README.md", "README.md: is not a script", "./README.md"),
    ("run . --entrypoint gone.py", "entrypoint 'gone.py' is not in the folder", "--entrypoint bad.py"),
    ("run empty", "code: the folder 'empty' has no file to send", "put train.py into it"),
    ("run docs", "the folder 'docs' has neither train.py nor main.py", "put train.py into it"),
    ("run https://github.com/x/y", "code: 'https:/github.com/x/y' is an address", "git clone it"),
    ("run ~/nowhere/x.py", "code: there is no file or folder '/", "allpass run train.py"),
]
WHAT_IT_HAS = [
    ("run train.py --gpus 2", "No such option: --gpus", "allpass run --gpu"),
    ("run train.py --gpu 0", "--gpu: 0 is not from 1 to 64 GPUs", "--gpu H100:2"),
    ("run train.py --gpu H100:100", "--gpu: 100 is not from 1 to 64 GPUs", "--gpu H100:2"),
    ("run train.py --gpu H100:many", "--gpu: 'H100:many' is not a type", "--gpu H100:2"),
    ("run train.py --cpus 0", "--cpus: 0 is not a positive integer", '"cpus": 1'),
    ("run train.py --memory lots", "--memory: 'lots' is not a size", "--memory 64GB"),
    ("run train.py -e WANDB_MODE", "--env: 'WANDB_MODE' is not key=value", "--env WANDB_MODE=offline"),
    ("run train.py -e HF_TOKEN=hf_abc", "--env: 'HF_TOKEN' looks like a secret", "allpass secret set HF_TOKEN"),
    ("run train.py -e ALLPASS_JOB_ID=x", "--env: 'ALLPASS_JOB_ID' is a variable that", "--env WANDB_MODE=offline"),
    ("run train.py --secret hf_token", "--secret: 'hf_token' is not the name of a secret", "--secret HF_TOKEN"),
    ("run train.py --pip torch=2.3", "--pip: 'torch=2.3' is not a requirement", "torch==2.3"),
    ("run train.py --pip torch,trl", "--pip: 'torch,trl' is not a requirement", "torch"),
    ("run train.py -r gone.txt", "--requirements: there is no file 'gone.txt'", "--requirements requirements.txt"),
    ("run train.py -p lr:0.1", "--param: 'lr:0.1' is not key=value", "--param lr=0.1"),
    ("run train.py -p lr 0.1", "arguments after -- and --param(s) cannot be mixed", "--param lr=0.1"),
    ("run train.py --label team", "--label: 'team' is not key=value", "--label team=nlp"),
    ("run train.py -t t.jsn", "t.jsn: there is no such file", "t.json"),
]
LIMITS = [
    ("run train.py --deadline 6", "--deadline: '6' is not a deadline", "--deadline 6h"),
    ("run train.py --deadline yesterday", "--deadline: 'yesterday' is not a deadline", "--deadline 6h"),
    ("run train.py --deadline 2020-01-01T00:00Z", "--deadline: 2020-01-01T00:00Z is not in the", "--deadline 6h"),
    ("run train.py --deadline -1h", "--deadline: '-1h' is not a deadline", "--deadline 6h"),
    ("run train.py --max-cost five", "--max-cost: 'five' is not an amount in dollars", "--max-cost 12.50"),
    ("run train.py --max-cost 0", "--max-cost: '0' is not more than nothing", "--max-cost 12.50"),
    ("run train.py --max-cost inf", "--max-cost: 'inf' is not an amount", "--max-cost 12.50"),
    ("run train.py --max-duration forever", "--max-duration: 'forever' is not a duration", "--max-duration 8h"),
    ("run train.py --max-duration 2030-01-01T00:00Z", "--max-duration: '2030", "--max-duration 8h"),
    ("run train.py --from-checkpoint 400", "--from-checkpoint: '400' is not JOB:STEP", "--from-checkpoint job_"),
    ("set job_1 --max-cost lots", "--max-cost: 'lots' is not an amount in dollars", "--max-cost 12.50"),
    ("set job_1 --deadline 6", "--deadline: '6' is not a deadline", "--deadline 6h"),
]
COMMANDS = [
    ("submit train.py", "there is no command 'submit'", "allpass run"),
    ("status", "there is no command 'status'", "allpass ps"),
    ("list", "there is no command 'list'", "allpass ps"),
    ("ls", "there is no command 'ls'", "allpass ps"),
    ("log job_1", "there is no command 'log'", "allpass logs"),
    ("stop job_1", "there is no command 'stop'", "allpass cancel"),
    ("delete job_1", "there is no command 'delete'", "allpass cancel"),
    ("describe job_1", "there is no command 'describe'", "allpass show"),
    ("prices", "there is no command 'prices'", "allpass offers"),
    ("bill", "there is no command 'bill'", "allpass cost"),
    ("init", "there is no command 'init'", "allpass login URL"),
    ("version", "there is no command 'version'", "allpass --version"),
    ("help run", "there is no command 'help'", "allpass run --help"),
    ("logs", "Missing argument 'JOB'", "allpass logs JOB   (ids: allpass ps)"),
    ("cancel", "Missing argument 'JOB...'", "allpass cancel JOB   (ids: allpass ps)"),
    ("sweep best", "Missing argument 'SWEEP'", "allpass sweep best SWEEP   (ids: allpass sweep list)"),
    ("sweep ls", "No such command 'ls'", "allpass sweep list, allpass sweep show"),
    ("nodes list", "Got unexpected extra argument", "allpass nodes --help"),
    ("plan llama-3-8b", "Got unexpected extra argument", "allpass plan --model llama-3-8b"),
    (
        "finetune llama3 rows.jsonl",
        "model: 'llama3' is neither a folder nor a name of the hub",
        "HuggingFaceTB/SmolLM2-135M",
    ),
]


@pytest.mark.parametrize(("words", "message", "advice"), [*CODE, *WHAT_IT_HAS, *LIMITS, *COMMANDS])
def test_a_mistake_is_told_with_its_mend(live: FakeService, words: str, message: str, advice: str) -> None:
    """Wrong usage is exit code 2, told before anything is sent, in the words of the command line."""
    for name, content in {
        "README.md": "# hi", "t.json": "{}", "cfg.yml": "a: 1", "n.ipynb": "{}", "bad.py": "def f(:\n",
        "two.py": "print 'x'\n", "run.sh": "echo hi\n", "rows.jsonl": '{"text": "a"}\n',
    }.items():  # fmt: skip
        Path(name).write_text(content)
    Path("empty").mkdir()
    Path("docs").mkdir()
    Path("docs/notes.md").write_text("x")
    result = call(*words.split())
    first, *rest = result.stderr.replace("  try: root ", "  try: allpass ").replace(" root ", " allpass ").splitlines()
    assert first.startswith(f"error: {message}"), result.stderr
    tries = [line.removeprefix("  try: ") for line in rest if line.startswith("  try: ")]
    assert advice in (tries or [""])[0], result.stderr
    assert (result.exit_code, result.stdout, live.requests) == (2, "", [])


@pytest.mark.parametrize(
    ("source", "options", "warned"),
    [
        ("import wandb\n", [], ["train.py imports wandb"]),
        ("import cv2, sklearn.svm\n", [], ["train.py imports cv2", "train.py imports sklearn"]),
        ("import wandb\n", ["--pip", "wandb"], []),
        ("import cv2\n", ["--pip", "opencv-python-headless"], []),
        ("import tqdm, transformers\n", ["--pip", "transformers"], []),
        ("import json, torch, numpy\nfrom allpass import training\n", [], []),
        ("import beside\n", [], ["train.py imports deep"]),
        ("try:\n    import wandb\nexcept ImportError:\n    wandb = None\n", [], []),
        ("def f():\n    import wandb\n", [], []),
        ("from . import x\nimport folder\n", [], []),
        ("import wandb\n", ["--image", "mine/image"], []),
    ],
)
def test_what_is_not_there_to_be_imported_is_warned_of(
    live: FakeService, source: str, options: list[str], warned: list[str]
) -> None:
    """A guess, so a warning: the job is submitted all the same. An image of one's own may have anything."""
    Path("train.py").write_text(source)
    Path("beside.py").write_text("import deep\n")
    Path("folder").mkdir()
    result = call("run", "train.py", *options)
    assert result.exit_code == 0
    told = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert [line.removeprefix("warning: ").partition(",")[0] for line in told] == warned
    assert len(live.jobs) == 1


@pytest.mark.parametrize("text", ["5", "$5", "5usd", "5.00", "1,000"])
def test_amounts_are_read_as_people_write_them(live: FakeService, text: str) -> None:
    """With a dollar sign, a unit, or commas."""
    assert call("run", "train.py", "--max-cost", text).exit_code == 0
    (job,) = live.jobs.values()
    assert job["template"]["caps"]["max_cost_usd"] in (5, 1000)
