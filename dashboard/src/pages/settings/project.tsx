import { useState } from "preact/hooks";

import { get, patch } from "../../api/client";
import { may } from "../../api/session";
import { announce } from "../../parts/announcer";
import { Confirm } from "../../parts/dialog";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";
import { LimitsView } from "./limits";
import { Read, Section } from "./section";
import type { Project } from "./shapes";

export function ProjectView() {
  const read = useReading("project", (signal) => get<Project>("v1/project", { signal }));
  return (
    <>
      <Section title="Project" what="What is settled for all of its jobs, from the next decision on." command="allpass project">
        <Read from={read} what="Reading the project">{(project) => <Facts project={project} changed={read.again} />}</Read>
      </Section>
      <LimitsView />
    </>
  );
}

function Facts({ project, changed }: { project: Project; changed: () => void }) {
  const [asking, setAsking] = useState(false);
  return (
    <>
      <dl class="facts">
        <dt>Name</dt><dd>{project.name}</dd>
        <dt>Id</dt><dd class="mono">{project.id}</dd>
        <dt>Created</dt><dd><Time at={project.created_at} /></dd>
        <dt>Machines ahead</dt>
        <dd class="switch-line">
          <span><span class={`status ${project.ahead ? "going" : "over"}`}>{project.ahead ? "on" : "off"}</span>{" "}
            {project.ahead ? "While jobs come often, machines are rented before the next one comes, and kept a while after one has left." : "None is rented ahead, and one that no job needs is given back at once."}</span>
          {may("admin") && <button type="button" onClick={() => setAsking(true)}>Turn {project.ahead ? "off" : "on"} …</button>}
        </dd>
      </dl>
      {asking && <AheadDialog project={project} onClose={() => setAsking(false)} changed={changed} />}
    </>
  );
}

function AheadDialog({ project, onClose, changed }: { project: Project; onClose: () => void; changed: () => void }) {
  const [on] = useState(!project.ahead); // as it was when this was asked
  const act = async () => {
    await patch("v1/project", { ahead: on });
    announce(on ? "Machines are kept ahead" : "No machine is kept ahead");
    changed();
  };
  return (
    <Confirm title={on ? "Rent machines ahead?" : "Rent no machines ahead?"} act={on ? "Turn on" : "Turn off"} command={`allpass project ${on ? "--ahead" : "--no-ahead"}`} onAct={act} onClose={onClose}>
      {on ? <p>While jobs come often, the next one finds a machine that has started. The bill then has idle time, which is a line of its own.</p>
        : <p>Machines that are idle now are given back with the next decision. The bill has less idle time, and the next job waits until a machine has started.</p>}
    </Confirm>
  );
}
