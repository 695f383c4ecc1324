import { useState } from "preact/hooks";

import { post } from "../../api/client";
import type { Job } from "../../api/jobs";
import { count, money, plural } from "../../format";
import { announce } from "../../parts/announcer";
import { Confirm } from "../../parts/dialog";
import type { DialogProps } from "./actions";
import { unsavedSteps } from "./changes";

function steer(job: Job, what: string, said: string, changed: () => void, body?: unknown): () => Promise<void> {
  return async () => {
    await post(`v1/jobs/${encodeURIComponent(job.id)}/${what}`, body);
    announce(said);
    changed();
  };
}

function isRunning(job: Job): boolean {
  return job.status === "running" || job.status === "checkpointing";
}

export function PauseDialog({ job, onClose, changed }: DialogProps) {
  const [lose, setLose] = useState(false);
  const unsaved = isRunning(job) && job.unsaved !== null;
  return (
    <Confirm title="Pause this job?" act="Pause" danger={unsaved} ready={!unsaved || lose} onClose={onClose}
      command={`allpass pause ${job.id}${unsaved ? " --lose-steps" : ""}`}
      onAct={steer(job, "pause", "The job is being paused", changed, { lose_steps: unsaved })}>
      {isRunning(job) && !unsaved && <p>Its code saves a checkpoint at the next step and leaves its machine. No step is lost.</p>}
      {!isRunning(job) && <p>None of its code runs now: it stays where it is, at step {count(job.step)}.</p>}
      <p>While it is paused, nothing is paid for it. Its deadline goes on.</p>
      {unsaved && <Unsaved job={job} lose={lose} setLose={setLose} />}
    </Confirm>
  );
}

function Unsaved({ job, lose, setLose }: { job: Job; lose: boolean; setLose: (now: boolean) => void }) {
  return (
    <>
      <p class="bad">Its checkpoints are not kept: {job.unsaved}. {plural(unsavedSteps(job), "step is", "steps are")} lost,
        and it goes on from {from(job)}.</p>
      <label class="check"><input type="checkbox" checked={lose} onChange={(event) => setLose(event.currentTarget.checked)} /> Lose these steps</label>
    </>
  );
}

export function ResumeDialog({ job, onClose, changed }: DialogProps) {
  return (
    <Confirm title="Resume this job?" act="Resume" onClose={onClose} command={`allpass resume ${job.id}`}
      onAct={steer(job, "resume", "The job goes on", changed)}>
      <p>It goes on from {from(job)}, as soon as there is a place for it.</p>
      {job.message && <p>It was paused: {job.message}</p>}
      {job.reason === "cost_cap" && <p>It has cost {money(job.cost)}. Raise its limit first: as long as it is reached, the job is not resumed.</p>}
    </Confirm>
  );
}

export function CancelDialog({ job, onClose, changed }: DialogProps) {
  return (
    <Confirm title="Cancel this job for good?" act="Cancel the job" danger onClose={onClose} command={`allpass cancel ${job.id}`}
      onAct={steer(job, "cancel", "The job is cancelled", changed)}>
      <p>{lossInWords(job)}</p>
      <p>A cancelled job cannot be resumed. Its checkpoints, log and files stay; the {money(job.cost)} it has cost so far are paid.</p>
      {job.status === "running" && !job.unsaved && <p class="faint">To keep its last steps, pause it instead: it saves first.</p>}
    </Confirm>
  );
}

function lossInWords(job: Job): string {
  const lost = unsavedSteps(job);
  if (job.step === 0) return "It has not done a step yet: nothing is lost.";
  if (lost === 0) return `Its newest checkpoint is of step ${count(job.step)}, where it is: no step is lost.`;
  if (job.checkpoint_step === null) return `It has no checkpoint: all ${plural(lost, "step")} it has done are lost.`;
  return `It stops at once, and the ${plural(lost, "step")} since its newest checkpoint (step ${count(job.checkpoint_step)}) are lost.`;
}

function from(job: Job): string {
  return job.checkpoint_step === null ? "the beginning" : `its checkpoint of step ${count(job.checkpoint_step)}`;
}
