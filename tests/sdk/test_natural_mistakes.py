"""What people type first, and what they are told: exit code, first line, and the next thing to try.

A mistake that was seen is one line of a table: its words, then the beginning of what is told, then what is advised.
"""

from __future__ import annotations

import json
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
    (
        "run C:\\proj\\train.py",
        "code: there is no file or folder 'C:\\\\proj\\\\train.py' here",
        "allpass run train.py",
    ),
    ("run .\\docs\\train.py", "code: there is no file or folder '.\\\\docs", "allpass run ./docs/train.py"),
    ("run train.py --entrypoint=", "--entrypoint: '' is empty", "leave --entrypoint out"),
    ("run train.py --name=", "--name: '' is empty", "leave --name out"),
    ("run train.py --app=", "--app: '' is empty", "leave --app out"),
    ("run train.py --image=", "--image: '' is empty", "leave --image out"),
    ("run ~/nowhere/x.py", "code: there is no file or folder '/", "allpass run train.py"),
]
WHAT_IT_HAS = [
    ("run train.py --gpus 2", "No such option: --gpus", "allpass run --gpu"),
    ("run train.py --gpu 0", "--gpu: 0 is not from 1 to 64 GPUs", "--gpu H100:2"),
    ("run train.py --gpu H100:100", "--gpu: 100 is not from 1 to 64 GPUs", "--gpu H100:2"),
    ("run train.py --gpu H100 --gpu A100", "--gpu: is given twice, as 'H100' and 'A100'", "--gpu once"),
    ("run train.py --gpu=H100 -d 1h --gpu=A100", "--gpu: is given twice, as 'H100' and 'A100'", "--gpu once"),
    ("run train.py --gpu H100,A100", "--gpu: 'H100,A100' names several", "--gpu H100"),
    ("run train.py --gpu 2:H100", "--gpu: '2:H100' is not a type, or TYPE:COUNT", "--gpu H100:2"),
    ("run train.py --gpu \U0001f525", "--gpu: '\U0001f525' is not a type", "--gpu H100:2"),
    ("run train.py --memory 0", "--memory: '0' is not more than nothing", "--memory 64GB"),
    ("run train.py --memory 9999TB", "--memory: '9999TB' is not more than nothing and at most", "--memory 64GB"),
    ("run train.py --memory 64GBs", "--memory: '64GBs' is not a size", "--memory 64GB"),
    ("run train.py -e =1", "--env: '=1' is not key=value", "--env WANDB_MODE=offline"),
    ("run train.py -e 1A=1", "--env: '1A' is not the name of a variable", "--env WANDB_MODE=offline"),
    ("run train.py -e A=1 -e A=2", "--env: 'A' is given twice", ""),
    ("run train.py --keep /abs", "--keep: '/abs' is not a path in the working folder", ""),
    ("run train.py --keep ..", "--keep: '..' is not a path in the working folder", ""),
    ("run train.py --params t.json --param lr", "--param: 'lr' is not key=value", "--param lr=0.1"),
    ("run train.py --params five.json", "--params: five.json holds 5, and needs an object", '{"lr": 0.1}'),
    ("run train.py -t docs", "docs: is a folder, and a file is needed", ""),
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
    ("run train.py --deadline 2030-01-01", "--deadline: 2030-01-01T00:00:00 has no time zone", "2030-01-01T18:00Z"),
    ("run train.py --deadline 2030-01-01T09:00", "--deadline: 2030-01-01T09:00:00 has no time", "01T09:00Z"),
    ("run train.py --max-cost 5 --max-cost 6", "--max-cost: is given twice, as '5' and '6'", "--max-cost once"),
    ("run train.py --max-duration 6", "--max-duration: '6' has no unit", "--max-duration 6h, or 6s"),
    ("run train.py --max-duration 0", "--max-duration: '0' has no unit", "--max-duration 8h"),
    ("run train.py --max-wait 2", "--max-wait: '2' has no unit", "--max-wait 2h, or 2s"),
    ("run train.py --max-wait tomorrow", "--max-wait: 'tomorrow' is not a duration", "--max-wait 8h"),
    ("run train.py --max-wait=-5m", "--max-wait: '-5m' is not a duration", "--max-wait 8h"),
    ("run train.py --max-wait=", "--max-wait: '' is empty", "leave --max-wait out"),
    ("run train.py --max-wait 20000w", "--max-wait: '20000w' is not a duration", "--max-wait 8h"),
    ("run train.py --retries lots", "--retries: 'lots' is not a number from 0 to 100", "--retries 2"),
    ("run train.py --retries 1.5", "--retries: '1.5' is not a number from 0 to 100", "--retries 2"),
    ("run train.py --retries=-1", "--retries: '-1' is not a number from 0 to 100", "--retries 2"),
    ("run train.py --retries \u0663", "--retries: '\u0663' is not a number", "--retries 2"),
    ("set job_1 retries=many", "--retries: 'many' is not a number", "--retries 2"),
    ("set job_1 max_wiat=2h", "'max_wiat' is nothing that can be set", "max_wait=2h"),
    ("set job_1 team=nlp", "'team' is nothing that can be set", "--label team=nlp"),
    ("set job_1 retries", "set: 'retries' is not key=value", "set JOB retries=3"),
    ("set job_1 retries=3 --retries 4", "retries is given twice", ""),
    ("cost --since yesterday", "--since: 'yesterday' is not a time", "allpass cost --since 7d"),
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
        "five.json": "5",
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


DEADLINE = "a deadline is no part of a template: it is given with the job"
IN_TEMPLATES = [
    ("t.json", '{"soft_deadline": "2020-01-01T00:00Z"}', 'soft_deadline: "2020-01-01T00:00Z": 2020', "--deadline 6h"),
    ("t.json", '{"deadline": "8h"}', f'deadline: "8h": {DEADLINE}', "--deadline 8h"),
    ("t.json", '{"parameters": {"lr": 1}}', 'parameters: {"lr": 1}: parameters are no part of a', "--param lr=0.1"),
    ("t.json", '{"pip": ["trl"]}', 'pip: ["trl"]: packages are no part of a template', "--pip transformers"),
    ("t.json", '{"max_cost": 5}', "max_cost: there is no such field here; it is caps.", '"caps": {"max_cost_usd": 5}'),
    ("t.json", '{"max_wait": "2h"}', "max_wait: there is no such field here", '"caps": {"max_wait_s": 7200}'),
    ("t.json", '{"timeout": "6h"}', "timeout: there is no such field here", '"caps": {"max_duration_s": 21600}'),
    ("t.json", '{"caps": {"retries": 3}}', "caps.retries: there is no such field here", '"retries": 3'),
    ("t.json", '{"max_retries": 3}', "max_retries: there is no such field", '"retries"'),
    (
        "t.json",
        '{"steps": "1000"}',
        "steps: there is no such field here; it is training.",
        '"training": {"steps": 1000}',
    ),
    ("t.json", '{"gpu_type": "H100"}', "gpu_type: there is no such field here", '"gpu": {"type": "H100"}'),
    ("t.json", '{"num_gpus": 2}', "num_gpus: there is no such field here; it is gpu.", '"gpu": {"count": 2}'),
    ("t.json", '{"tags": {"a": "b"}}', "tags: there is no such field here; it is labels", '"labels": {"a": "b"}'),
    ("t.json", '{"spot": true}', "spot: there is no such field here; it is priority_class", '"priority_class": "spot"'),
    (
        "t.json",
        '{"preemptible": true}',
        "preemptible: there is no such field here; it is priority_class",
        '"priority_class": "spot"',
    ),
    (
        "t.json",
        '{"priority_class": "low"}',
        'priority_class: "low" is not one of guaranteed or spot',
        '"priority_class": "spot"',
    ),
    ("t.json", '{"gpu": "H100:2"}', 'gpu: "H100:2" is not an object', '"gpu": {"type": "H100", "count": 2}'),
    ("t.json", '{"gpu": "2x H100"}', 'gpu: "2x H100" is not an object', '"gpu": {"type": "H100", "count": 2}'),
    ("t.json", '{"gpu": 2}', "gpu: 2 is not an object of fields", '"gpu": {"count": 2}'),
    ("t.json", '{"caps": {"max_duration_s": "6h"}}', 'caps.max_duration_s: "6h" is not', '"max_duration_s": 21600'),
    ("t.json", '{"caps": {"max_cost_usd": "$5"}}', 'caps.max_cost_usd: "$5" is not a number', '"max_cost_usd": 5'),
    ("t.json", '{"memory_gb": "64GB"}', 'memory_gb: "64GB" is not a number', '"memory_gb": 64'),
    ("t.json", '{"memory_gb": "512 MiB"}', 'memory_gb: "512 MiB" is not a number', '"memory_gb": 0.512'),
    ("t.json", '{"command": "python train.py"}', "command: ", '"command": ["python", "train.py"]'),
    ("t.json", '{"secrets": "HF_TOKEN"}', 'secrets: "HF_TOKEN" is not a list', '"secrets": ["HF_TOKEN"]'),
    ("t.json", '{"outputs": "out"}', 'outputs: "out" is not a list', '"outputs": ["out"]'),
    ("t.json", '{"env": ["A=1", "B=2"]}', 'env: ["A=1", "B=2"] is not', '"env": {"A": "1", "B": "2"}'),
    ("t.json", '{"env": {"A": 1}}', "env.A: 1 is not text", '"A": "1"'),
    ("t.json", '{"model": "llama-3-8b"}', 'model: "llama-3-8b" is not', '"model": {"name": "llama-3-8b"}'),
    ("t.json", '{"retries": -1}', "retries: -1 is less than 0", '"retries": 1'),
    ("t.json", '{"labels": {"a": "' + "x" * 300 + '"}}', "labels.a: ", '"a": "' + "x" * 40 + '"'),
    ("t.json", '{"cpus": 1,}', "line 1, column 12: is not JSON", "leave the comma before } or ] out"),
    ("t.json", '{"cpus": 1} // two', "line 1, column 13: is not JSON", "JSON has no comments; YAML has"),
    ("t.json", "{'cpus': 1}", "line 1, column 2: is not JSON", "write names and texts in double quotes"),
    ("t.json", " \n", "is empty", '{"gpu": {"count": 1}}'),
    ("t.json", "[" * 10_000 + "]" * 10_000, "is nested too deeply", ""),
    ("t.json", '{"env":' * 9_000 + "1" + "}" * 9_000, "is nested too deeply", ""),
    ("t.json", '{"name": "' + "x" * 5_000_000 + '"}', "is 5.0 MB, and a template has at most 1 MB", "put data into"),
    ("t.yaml", "[" * 3_000 + "]" * 3_000, "is nested too deeply", ""),
    ("t.yaml", "name: 2026-01-01", "name: ", '"name": "2026-01-01"'),
    ("t.yaml", "gpu:\n\tcount: 2", "line 2, column 1: is not YAML", ""),
    ("t.toml", "[gpu]\ncount = 1", "line 1, column 2: is not JSON", "a template is JSON or YAML"),
]


@pytest.mark.parametrize(("name", "text", "message", "advice"), IN_TEMPLATES)
def test_a_mistake_in_a_template_is_told_with_its_mend(
    live: FakeService, name: str, text: str, message: str, advice: str
) -> None:
    """The file, the field, the value, and what would be accepted there; nothing is sent."""
    Path(name).write_text(text)
    result = call("run", "train.py", "-t", name)
    first, *rest = result.stderr.splitlines()
    assert first.startswith((f"error: {name}: {message}", f"error: {name}, {message}")), first[:300]
    tries = [line.removeprefix("  try: ") for line in rest if line.startswith("  try: ")]
    assert (tries or [""])[0].startswith(advice), result.stderr[:600]
    assert len(result.stderr) < 1_500
    assert (result.exit_code, result.stdout, live.requests) == (2, "", [])


def test_what_is_likely_a_mistake_is_warned_of(live: FakeService) -> None:
    """What the service says of a template that it has let in, on stderr; the job's id alone on stdout."""
    told = "template.model.name: 'lama-3-8b' is not a model whose size is known; the nearest is 'llama-3-8b'"
    live.warnings = [told]
    result = call("run", "train.py")
    (job_id,) = live.jobs
    assert (result.exit_code, result.stdout) == (0, f"{job_id}\n")
    assert result.stderr == f"warning: {told}\n  try: allpass cancel {job_id}, and mend it\n"


def test_a_job_is_set_in_words_without_dashes(live: FakeService) -> None:
    """NAME=VALUE is what --name VALUE is."""
    job_id = live.add_job()["id"]
    assert call("set", job_id, "max_wait=2h", "retries=3", "max-cost=20").exit_code == 0
    assert json.loads(live.requests[0].content) == {"max_wait_s": 7200, "retries": 3, "max_cost_usd": 20.0}


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
