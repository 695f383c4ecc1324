/** Links that other people's code told of: only to the web, never a script. Pure. */

export function safeLink(url: string | null | undefined): string | null {
  if (!url) return null;
  try {
    const { protocol } = new URL(url, "http://here.invalid/");
    return protocol === "http:" || protocol === "https:" ? url : null;
  } catch {
    return null;
  }
}
