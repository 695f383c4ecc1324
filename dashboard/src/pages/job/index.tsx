export function Job({ id }: { id: string }) {
  return <p>{id}</p>;
}
