import { announce } from "./announcer";

/** The command line that does the same, to copy. */
export function Command({ text }: { text: string }) {
  return (
    <button type="button" class="command" title="Copy the command" onClick={() => void copy(text)}>
      <code>{text}</code>
    </button>
  );
}

async function copy(text: string) {
  try {
    await navigator.clipboard.writeText(text); // only where the page came by https or from this host
    announce("Copied");
  } catch {
    announce(`Copy it by hand: ${text}`);
  }
}
