import type { Stay } from "../../api/jobs";
import { absolute, count, duration, money } from "../../format";
import { Place } from "../../parts/place";
import { endInWords, pauseBefore, wasFault, type Story, type Stretch } from "./story";

/** The timeline in words: every stay and every wait, in order. */
export function StoryTable({ story, stays }: { story: Story; stays: readonly Stay[] }) {
  const rows = [
    ...stays.map((stay, at) => ({ at: Date.parse(stay.from_at), stay, index: at, wait: null })),
    ...story.stretches.filter((one) => !one.stay).map((wait) => ({ at: wait.from, stay: null, index: -1, wait })),
  ].sort((a, b) => a.at - b.at);
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="What happened">
      <table class="story">
        <caption class="hidden">Every stay and every wait, in order</caption>
        <thead>
          <tr>
            <th>Where</th><th class="number">At</th><th class="number more">Ready after</th><th class="number">Lasted</th>
            <th class="number more">From step</th><th>End</th><th class="number">Cost</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ at, stay, index, wait }) => stay
            ? <StayRow key={`stay ${index}`} stay={stay} pause={pauseBefore(stays, index)} end={story.to} from={story.from} />
            : <WaitRow key={`wait ${at}`} wait={wait!} from={story.from} />)}
        </tbody>
      </table>
    </div>
  );
}

function WaitRow({ wait, from }: { wait: Stretch; from: number }) {
  return (
    <tr class="faint">
      <td>{wait.kind === "paused" ? "Paused" : "Waiting"}</td>
      <At at={wait.from} from={from} />
      <td class="more" />
      <td class="number">{duration(wait.to - wait.from)}</td>
      <td class="more" />
      <td class="story-end" colSpan={2}>{wait.why}</td>
    </tr>
  );
}

function StayRow({ stay, pause, end, from }: { stay: Stay; pause: number | null; end: number; from: number }) {
  const begun = Date.parse(stay.from_at);
  const to = stay.to_at ? Date.parse(stay.to_at) : end;
  return (
    <tr>
      <td><Place at={stay} /></td>
      <At at={begun} from={from} />
      <td class="number more">{stay.running_at ? duration(Date.parse(stay.running_at) - begun) : "–"}</td>
      <td class="number">{duration(to - begun)}</td>
      <td class="number more">{stay.resumed_from_step === null ? "–" : count(stay.resumed_from_step)}</td>
      <td class={`story-end ${wasFault(stay) ? "bad" : ""}`}>{endInWords(stay)}{pause !== null && <span class="faint"> · its code stood still {duration(pause)} before</span>}</td>
      <td class="number">{money(stay.cost)}</td>
    </tr>
  );
}

function At({ at, from }: { at: number; from: number }) {
  return <td class="number" title={absolute(at)}>+{duration(at - from)}</td>;
}
