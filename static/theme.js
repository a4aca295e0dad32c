// Runs before the first paint: a theme chosen earlier, and the mark that scripts run.
{
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch {
    // No storage here (private window, blocked cookies): the system's theme it is.
  }
}
