import { useState } from "preact/hooks";

import { may } from "../../api/session";
import { isOver, type Job } from "../../api/jobs";
import { CancelDialog, PauseDialog, ResumeDialog } from "./steer-dialogs";
import { DeadlineDialog, LimitsDialog } from "./change-dialogs";

const DIALOGS = { pause: PauseDialog, resume: ResumeDialog, cancel: CancelDialog, deadline: DeadlineDialog, limits: LimitsDialog } as const;
type Action = keyof typeof DIALOGS;

export interface DialogProps {
  job: Job;
  onClose: () => void;
  changed: () => void;
}

const TITLES: Record<Action, string> = { pause: "Pause", resume: "Resume", deadline: "Deadline …", limits: "Limits …", cancel: "Cancel" };

/** What may be done with the job as it is; nothing where the key may only read, or the job is over. */
export function actionsOf(status: string): Action[] {
  if (isOver({ status })) return [];
  if (status === "paused") return ["resume", "deadline", "limits", "cancel"];
  if (status === "checkpointing") return ["deadline", "limits", "cancel"];
  return ["pause", "deadline", "limits", "cancel"];
}

export function Actions({ job, changed }: { job: Job; changed: () => void }) {
  const [open, setOpen] = useState<Action | null>(null);
  if (!may("submit")) return null;
  const actions = actionsOf(job.status);
  const Opened = open && DIALOGS[open];
  return (
    <div class="actions" role="group" aria-label="Steer this job">
      {actions.map((action) => (
        <button key={action} type="button" class={action === "cancel" ? "danger" : ""} onClick={() => setOpen(action)}>{TITLES[action]}</button>
      ))}
      {Opened && <Opened job={job} onClose={() => setOpen(null)} changed={changed} />}
    </div>
  );
}
