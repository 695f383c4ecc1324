"""What surrounds a user process while it lives and right after: its metrics and checkpoints, and the judgement of how
it ended."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from workers.agent.api import Writer
from workers.agent.checkpoints import Marks, Uploader, inside, marks, written_over_s
from workers.agent.early import Early
from workers.agent.errors import Unsafe
from workers.agent.facts import MOST_LINKS
from workers.agent.files import Fence
from workers.agent.gpus import machine_index
from workers.agent.likely_saves import LikelySaves
from workers.agent.logs import Log
from workers.agent.machine import Machine
from workers.agent.metric_lines import MetricLine, MetricTail
from workers.agent.metrics import Metrics
from workers.agent.own_folders import OwnCheckpoint, Pattern
from workers.agent.own_saves import OwnSaves
from workers.agent.process import Ended, Stoppable
from workers.agent.refusals import Refusals, shown
from workers.agent.total import TotalSteps
from workers.agent.transfers import Transfers
from workers.agent.uploading import Candidate
from workers.agent.workspace import Workspace, first_step, profiles_first

SIGTERM = 15
LONGEST_ERROR = 4000
MOST_TOKENS = 2**53
_MOST_FOR_SAVE_MS = 600_000  # more than its grace, for who is to begin again
MOST_GPU_NEWS = 2000  # of one run: each is an event of its job; after these it stays as it was told
_RARE = ("profile", "parted", "killed", "stranded")  # left out where there is none: older servers do not know it


@dataclass
class ExitReport:
    """How the user process ended: exactly one of the first three is set."""

    exit_code: Optional[int] = None
    signal: Optional[int] = None
    environment_error: Optional[str] = None
    machine_fault: bool = False
    saved_after_stop: bool = False
    last_lines: str = ""
    training: Optional[Dict[str, Any]] = None  # what the code told of itself
    profile: Optional[Dict[str, Any]] = None  # of a run that was made for it
    parted: Optional[str] = None
    killed: Optional[bool] = None  # True: by us, as the server told us
    stranded: Optional[bool] = None  # True: it goes on elsewhere from what is stored

    def as_wire(self) -> Dict[str, Any]:
        error = self.environment_error
        told = {name: value for name, value in vars(self).items() if value is not None or name not in _RARE}
        return {**told, "environment_error": None if error is None else error[:LONGEST_ERROR]}


@dataclass(frozen=True)
class _Stop:
    """What was there when the process was asked to save and leave. `rests`: it is to begin again here."""

    metrics_bytes: int
    checkpoints: Marks = field(default_factory=dict)
    rests: bool = False


@dataclass
class _Present:
    """The process that runs now. `keeps`: a checkpoint was stored since it began; `refused`: the newest never will be;
    `is_read`: it has ended, and what it has left is known; `total_before`: of steps, as the one before said it."""

    begun: int
    total_before: int = 0
    says_saves: bool = False
    keeps: bool = False
    refused: bool = False
    is_read: bool = False
    stepped: bool = False


class TrainingMeter:
    """One per run, whose processes may come one after the other, or be shared with another run: then `tokens` are those
    that this run has trained on. `parts_of`: so many machines may each write a part of its checkpoints. `on_step`,
    `on_news`, `on_fenced` and `on_shown` (that its code saves, or that it does not) are called from threads of the
    metrics and checkpoints."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        writer: Writer,
        machine: Machine,
        workspace: Workspace,
        log: Log,
        gone: threading.Event,
        *,
        on_step: Callable[[int], None],
        on_news: Callable[[], None],
        on_fenced: Callable[[], None],
        on_shown: Callable[[], None] = lambda: None,
        shares: bool = False,
        transfers: Optional[Transfers] = None,
        keep_up: Callable[[], None] = lambda: None,
        parts_of: int = 0,
    ) -> None:
        self._parts_of = parts_of
        self.tokens: Optional[int] = 0 if shares else None
        self._tokens_before = 0
        self.watched: Dict[str, Any] = {}  # as the code told it last
        self.unusable = ""  # its GPUs, as the code says
        self.saves = False  # when it is asked to, as the code says
        self._total = TotalSteps()
        self._links: Dict[str, str] = {}  # by name, replaced whenever there is news
        self._libraries: Dict[str, str] = {}  # the same
        self._gpus: Dict[str, Any] = {}  # the same
        self._gpu_news = 0
        self._is_untracked = False  # its owner has heard of it
        self._writer = writer
        self._machine = machine
        self._workspace = workspace
        self._log = log
        self._gone = gone
        self._on_step = on_step
        self._on_news = on_news
        self._on_shown = on_shown
        self._on_fenced = on_fenced
        self._fence = Fence(workspace.home, workspace.uid)
        self._restored: Tuple[str, ...] = (
            (workspace.resume(int(spec["resume"]["step"])).name,) if spec.get("resume") else ()
        )
        self._profiles = spec.get("purpose") == "profile"
        self._profiles_first = profiles_first(spec)
        self._profile: Dict[str, Any] = {}
        self._is_profile_heard = False
        self._step = first_step(spec)
        self._values: Dict[str, float] = {}
        self._facts: Dict[str, Any] = {}
        self._is_stored = self._step > 0  # something that its job goes on from
        self._declares = False  # the script writes `checkpoint` lines
        self._stop: Optional[_Stop] = None
        self._spec = spec
        self._answering = threading.Lock()  # guards the stop and the next three, where a checkpoint may be its answer
        self._waiting: Optional[Callable[[], None]] = None  # tells a process to rest, which is told after its next save
        self._rested: Optional[Candidate] = None  # the answer of a process that is to begin again
        self._newest: Optional[Candidate] = None
        self._present = _Present(self._step)
        self.is_unfit = False  # it has begun anew where it should have gone on, or says that it would
        api, transport = machine.api, machine.transport
        self._refusals = Refusals(api, writer, log.say, gone)
        self._uploader = Uploader(
            api,
            transport,
            writer,
            self._fence,
            before_commit=self._send_measured,
            on_fenced=on_fenced,
            say=log.say,
            gone=gone,
            refusals=self._refusals,
            transfers=transfers,
            keep_up=keep_up,
            on_outcome=self._on_outcome,
        )
        self._stops_together = False
        self._own_saves = self._own_saves_from(spec)
        self._likely_saves: Optional[LikelySaves] = None
        if self._own_saves is None and not shares:
            self._likely_saves = LikelySaves(workspace.code, lambda: self._declares or self.saves, log.say)
        tail = MetricTail(workspace.metrics, self._fence)
        self._metrics = Metrics(api, writer, tail, on_lines=self._on_lines, on_fenced=on_fenced, say=log.say, gone=gone)

    def start(self) -> None:
        self._uploader.start()
        self._metrics.start()
        if self._own_saves is not None:
            self._own_saves.start()
        if self._likely_saves is not None:
            self._likely_saves.start()

    def _own_saves_from(self, spec: Mapping[str, Any]) -> Optional[OwnSaves]:
        """What the script keeps in folders of its own from now on; None where nobody has named them."""
        pattern = Pattern.of(spec["template"])
        if pattern is None:
            return None
        found = OwnSaves(spec, self._workspace, pattern, self._offer_own, self._refuse_own)
        found.remember()
        return found

    def ask(self, process: Stoppable, grace_ms: int) -> None:
        """Have it save and leave; one that saves by itself leaves when it has. Returns at once."""
        if self._stops_waiting() or not self._answers_for_good():
            self._stop = self._marks()
            self._send_early()
            self._metrics.read_often()
        if self._own_saves is None or self._declares:
            process.terminate(grace_ms)
        else:
            self._own_saves.ask(process.terminate, grace_ms)

    def ask_to_rest(self, terminate: Callable[[int], None], grace_ms: int) -> None:
        """The same, to begin again here: one that saves by itself leaves when it has, however long that takes. Nobody
        is in a hurry, so it may take twice as long as its last save."""
        self._stop = replace(self._marks(), rests=True)
        self._metrics.read_often()
        if self._newest is not None:
            grace_ms += min(_MOST_FOR_SAVE_MS, round(2000 * written_over_s(self._newest)))
        if not self.rests_after_save:
            terminate(grace_ms)
            return
        self._waiting = lambda: terminate(grace_ms)
        if self._own_saves is not None and not self._declares:
            self._own_saves.ask(terminate, grace_ms, patiently=True)

    @property
    def rests_after_save(self) -> bool:
        """Whether a request to rest has to reach it right after a save: else what it had done since would be lost."""
        return not self._present.says_saves if self._declares else self._own_saves is not None

    def let_be(self) -> bool:
        """It need not leave any more; False where it was told already."""
        if not self._stops_waiting():
            return False
        self._stop = None
        return True

    def _stops_waiting(self) -> bool:
        """For a save of a process that is told after it; False where it was told already, or nobody waits."""
        with self._answering:
            if self._waiting is None or (self._own_saves is not None and not self._own_saves.let_be()):
                return False
            self._waiting = None
            return True

    @property
    def was_told(self) -> bool:
        """Whether a request to rest has reached the process."""
        return self._waiting is None or (self._own_saves is not None and self._own_saves.was_told)

    @property
    def shown(self) -> bool:
        """Whether the process that runs now has shown that it saves, or saves when it is asked to."""
        present = self._present
        return (present.says_saves or present.keeps) and not present.refused

    @property
    def stepped(self) -> bool:
        """Whether it has taken a step, as far as it says so."""
        return self._present.stepped or self._present.keeps

    @property
    def is_short(self) -> bool:
        """It has ended without a step, though by the word of the process before there were some left."""
        return not self.stepped and self._present.total_before > self._present.begun

    @property
    def follows(self) -> bool:
        """Its code changes its GPUs by itself."""
        return bool(self._gpus)

    def rest(self, ended: Ended) -> Optional[Candidate]:
        """The process has ended: with what it has answered the request to rest; nothing is stored of that yet."""
        self._metrics.catch_up()
        if self._own_saves is not None:
            self._own_saves.finish(ended)
        self._offer_undeclared(ended)
        self._present.is_read = True
        return self._rested

    @property
    def newest(self) -> Optional[Candidate]:
        """Of this run; None where it has none yet."""
        return self._newest

    def settle(self, *, final: bool = False) -> None:
        """It does not begin again here; `final`: it goes on elsewhere from what it has answered."""
        with self._answering:
            rested, self._rested = self._rested, None
            self._stop = None if self._stop is None or self._stop.rests else self._stop
        if rested is not None:
            self._uploader.offer(replace(rested, after_stop=final))

    def begins_again(self, step: int, restored: Optional[str]) -> None:
        """Another process is about to begin, with the checkpoint in that folder; None: as the first one did."""
        self.settle()
        self._metrics.read_often(False)
        self._waiting, self.unusable = None, ""
        self._step, self._present = step, _Present(step, self._total.newest)
        self._restored += () if restored is None else (restored,)
        self._own_saves = self._own_saves_from({**self._spec, "resume": {"step": step}})
        if self._own_saves is not None:
            self._own_saves.start()

    def _answers_for_good(self) -> bool:
        """Whether the process was asked already, to rest: what it answers is final now."""
        with self._answering:
            if self._stop is None or not self._stop.rests:
                return False
            self._stop = replace(self._stop, rests=False)
            rested, self._rested = self._rested, None
        if rested is not None:
            self._uploader.offer(rested)
        return True

    def hasten(self) -> None:
        """The machine is being taken away."""
        if self._own_saves is not None:
            self._own_saves.hasten()

    def _marks(self) -> _Stop:
        """What is there, right before the process is asked to stop: what comes later answers that request."""
        try:
            size_bytes = self._workspace.metrics.stat().st_size
        except OSError:  # removed by the script
            size_bytes = 0
        try:
            before = marks(self._workspace.checkpoints, without=self._restored)
        except (OSError, Unsafe):
            before = {}
        return _Stop(size_bytes, before)

    def _send_early(self) -> None:
        early = Early(
            self._machine.api,
            self._machine.transport,
            self._writer,
            self._fence,
            self._workspace.checkpoints,
            lambda: self._step,
            self._gone,
        )
        self._uploader.send_early(early)

    def told(self) -> Dict[str, Any]:
        """What few runs have to tell; left out by the others, as older servers do not know it."""
        told: Dict[str, Any] = {} if self.tokens is None else {"tokens": self.tokens}
        if self._profiles_first and self._profile and not self._is_profile_heard:
            told["profile"] = self._profile
        if self.saves:
            told["saves"] = True
        if self._stops_together:
            told["stops_together"] = True
        if self._total.believed is not None:
            told["total_steps"] = self._total.believed
        if self._links:
            told["links"] = self._links
        if self._libraries:
            told["libraries"] = self._libraries
        if self._gpus:
            told["gpus"] = self._gpus
        return {**told, "watch": self.watched} if self.watched else told

    def heard(self, report: Mapping[str, Any]) -> None:
        """The server has answered this one."""
        self._is_profile_heard = self._is_profile_heard or "profile" in report

    @property
    def step(self) -> int:
        return self._step

    def finish(self, ended: Ended) -> ExitReport:
        """Send all that was measured and saved. Returns when it is safe, or not wanted any more."""
        self._metrics.finish_reading()
        if self._own_saves is not None:
            self._own_saves.finish(ended)
        if self._likely_saves is not None:
            self._likely_saves.finish()
        self._offer_undeclared(ended)
        self._uploader.finish()
        self._metrics.finish_sending()
        saved = self._uploader.saved_after_stop
        report = ExitReport(ended.exit_code, ended.signal, saved_after_stop=saved, parted=ended.parted)
        if ended.strands and self._is_stored and not self._gone.is_set():
            report.exit_code, report.signal, report.stranded = None, SIGTERM, True  # older servers count a fault
        report.training = self._facts or None
        if self._profiles:
            report.profile = self._profile or None
        return report

    def _on_lines(self, lines: Sequence[MetricLine]) -> None:
        for line in lines:
            self._on_line(line)
        self._on_step(self._step)

    def _on_line(self, line: MetricLine) -> None:
        self._step = max(self._step, line.step)
        self._values = line.values or self._values
        self._facts.update(line.training)
        if line.profile and not self._profile:  # the first counts: there is nothing to look at twice
            self._profile = line.profile
            if self._profiles_first:
                self._on_news()
        present = self._present
        present.stepped = present.stepped or (line.step > present.begun and bool(line.values))
        if line.saves and not present.says_saves:
            self.saves = present.says_saves = True
            self._on_news()
            self._on_shown()
        self._stops_together = self._stops_together or line.stops_together
        self.unusable = self.unusable or line.unusable
        self._total.hear(line.total_steps)
        if line.link:
            self._take_link(line.link)
        if line.libraries:
            self._take_libraries(line.libraries)
        if line.gpus:
            self._take_gpus(line.gpus)
        if line.refused:
            self.is_unfit = True
            self._refusals.tell("checkpoint", "what it saves", line.step, Unsafe(line.refused))
        if line.untracked:
            self._take_untracked(line.step, line.untracked)
        self.watched = line.watched or self.watched
        self._count(line)
        if line.checkpoint is None:
            return
        self._declares = True
        stop = self._stop
        try:
            path = inside(self._workspace.checkpoints, line.checkpoint)
        except Unsafe as error:
            self._refusals.tell("checkpoint", f"checkpoint {shown(line.checkpoint)}", line.step, error)
            return
        if line.is_part and not self._parts_of:
            words = "parts are put together for a job on several machines, where the agents of all know of it"
            self._refusals.tell("checkpoint", f"checkpoint {shown(line.checkpoint)}", line.step, Unsafe(words))
            return
        after_stop = stop is not None and line.offset >= stop.metrics_bytes
        waiting = self._waiting
        if waiting is not None and after_stop and self._stops_waiting():  # it has saved, wherever it was waited for
            waiting()
        overtaken = line.step < self._step  # saved beside the training, which may save again before it leaves
        self._offer(
            Candidate(
                path,
                line.step,
                self._values,
                after_stop,
                overtaken=overtaken,
                part_of=self._parts_of if line.is_part else 0,
            )
        )

    def _offer_own(self, found: OwnCheckpoint, after_stop: bool) -> None:
        """Who announces its checkpoints is believed, and not guessed at."""
        if not self._declares:
            self._step = max(self._step, found.step)
            names = sorted(found.marks)
            self._offer(Candidate(self._workspace.code, found.step, self._values, after_stop, names, called=found.name))
            self._on_step(self._step)

    def _offer(self, candidate: Candidate) -> None:
        """To the store; the answer of a process that begins again here only when it is known where it goes on. It may
        be one that the training had passed by then: it has saved all the same."""
        with self._answering:
            stop = self._stop
            if stop is None:  # withdrawn meanwhile
                candidate = replace(candidate, after_stop=False)
            if not candidate.part_of:
                self._newest = candidate
            if stop is not None and stop.rests and candidate.after_stop:
                self._rested = candidate
                return
        self._uploader.offer(candidate)

    def _on_outcome(self, candidate: Candidate, stored: bool) -> None:
        """From threads of the checkpoints: it is stored, or never will be."""
        present = self._present
        self._is_stored = self._is_stored or stored
        present.keeps = present.keeps or (stored and candidate.step > present.begun)
        present.refused = not stored
        self._on_shown()

    def _refuse_own(self, step: int, name: str, error: Exception) -> None:
        self.is_unfit = True
        if not self._declares:
            self._refusals.tell("checkpoint", f"checkpoint {shown(name)}", step, error)

    def _take_link(self, link: Dict[str, str]) -> None:
        """Whoever may see the job is shown it: none with a secret in it, and none of too many."""
        links = {**self._links, **link}
        if links != self._links and len(links) <= MOST_LINKS and not any(map(self._log.hides, link.values())):
            self._links = links
            self._on_news()

    def _take_libraries(self, libraries: Dict[str, str]) -> None:
        if libraries != self._libraries and not any(map(self._log.hides, libraries.values())):
            self._libraries = libraries
            self._on_news()

    def _take_gpus(self, named: Dict[str, Any]) -> None:
        """As the server counts them. Whoever waits for one hears of it at once; from code that goes on and on, no
        more."""
        config = self._machine.config
        gpus: Dict[str, Any] = {
            use: sorted({index for name in names if (index := machine_index(config, name)) is not None})
            for use, names in named.items()
            if isinstance(names, list)
        }
        if "pause_ms" in named:
            gpus["pause_ms"] = named["pause_ms"]
        if gpus != self._gpus and self._gpu_news < MOST_GPU_NEWS:
            self._gpu_news += 1
            self._gpus = gpus
            self._on_news()

    def _take_untracked(self, step: int, why: str) -> None:
        """Its owner hears of it once. A reason with a secret in it is kept back, and the fact is told."""
        if not self._is_untracked:
            self._is_untracked = True
            self._refusals.untracked(step, "the reason holds a secret" if self._log.hides(why) else why)

    def _count(self, line: MetricLine) -> None:
        """Tokens that the job had read when this run began are another run's."""
        if line.tokens_before is not None:
            self._tokens_before = line.tokens_before
        if self.tokens is not None and 0 <= line.values.get("tokens", -1) <= MOST_TOKENS:
            self.tokens = max(self.tokens, int(line.values["tokens"]) - self._tokens_before)

    def _send_measured(self) -> None:
        """From the checkpoints' thread."""
        self._metrics.flush()

    def _offer_undeclared(self, ended: Ended) -> None:
        """A script that never writes `checkpoint` lines is served too, when it left on our request: by a code other
        than 0 its directory is its checkpoint, by 0 only if it changed that, and likewise when the main process fell to
        our request while those that it had started left by themselves. What was killed may have been in the middle of
        writing, so what it left is not trusted."""
        stop = self._stop
        killed = ended.exit_code is None and not ended.orderly
        if stop is None or self._present.is_read or self._declares or killed or self._gone.is_set():
            return
        folder = self._workspace.checkpoints
        try:
            now = marks(folder, without=self._restored)
        except (OSError, Unsafe) as error:
            self._refusals.tell("checkpoint", "the checkpoint directory", self._step, error)
            return
        changed = now != stop.checkpoints
        if now and (changed or ended.exit_code not in (0, None)):
            self._offer(Candidate(folder, self._step, self._values, changed, sorted(now)))
