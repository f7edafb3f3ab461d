// Since when a tool runs. A snapshot does not say it, so the tab keeps what it saw: a reload does not set the clock back.

const SLOT = "earlybyte.tools";
const KEPT = 50;

const read = () => new Map(JSON.parse(sessionStorage.getItem(SLOT) ?? "[]"));
const write = (moments) => sessionStorage.setItem(SLOT, JSON.stringify([...moments].slice(-KEPT)));

/** The moment, in epoch milliseconds, from which the clock of the call `id` counts: now, unless this tab saw it before. */
export function runningSince(id) {
  const moments = read();
  if (!moments.has(id)) write(moments.set(id, Date.now()));
  return moments.get(id);
}

/** The call begins, or begins anew, or is over: what was seen of it no longer counts. */
export function forgetRunning(id) {
  const moments = read();
  if (moments.delete(id)) write(moments);
}
