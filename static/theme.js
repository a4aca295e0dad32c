// Runs before the first paint: a theme chosen earlier, whether drafted tokens are marked, and that scripts run.
{
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    if (localStorage.getItem("ink") === "off") root.dataset.ink = "off";
  } catch {
    // No storage here (private window, blocked cookies): the system's theme it is.
  }
}
