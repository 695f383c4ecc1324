import type { Explanation, Sentence } from "../../api/jobs";

export function Explained({ told }: { told: Explanation }) {
  const late = told.deadline.slack_ms !== null && told.deadline.slack_ms < 0;
  return (
    <>
      <h2>Why it is where it is</h2>
      <p class="headline">{told.headline}</p>
      <Sentences list={told.because} />
      {told.next.length > 0 && <><h2>What comes next</h2><Sentences list={told.next} ordered /></>}
      <h2>Deadline</h2>
      <p class={late ? "bad" : ""}>{told.deadline.text}{!told.deadline.given && <span class="faint"> (the service's default: none was given)</span>}</p>
    </>
  );
}

function Sentences({ list, ordered = false }: { list: readonly Sentence[]; ordered?: boolean }) {
  const items = list.map((one, at) => <li key={at}>{one.text}</li>);
  return ordered ? <ol class="sentences">{items}</ol> : <ul class="sentences">{items}</ul>;
}
