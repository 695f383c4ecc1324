/** Holds the place of what is being read. */
export function Loading({ what }: { what: string }) {
  return <p class="loading" role="status">{what} …</p>;
}
