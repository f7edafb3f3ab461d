// Runs before the first paint, so that a chosen theme does not flash in the other one. Not a module: modules wait.
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("earlybyte.theme");
  } catch {
    // Storage is closed to us: the system's theme it is.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
