// What every page of the console needs in the browser: theme, zone of instants, keys, copying, whether it is looked at.
// It is loaded before anything is drawn, so that a dark page is dark from its first paint.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const kept = (name, fallback) => {
    try { return localStorage.getItem(name) ?? fallback; } catch { return fallback; }
  };
  const keep = (name, value) => {
    try { localStorage.setItem(name, value); } catch { /* private mode: it lasts for this page */ }
  };
  let theme = kept("dueline-theme", "system");
  let zone = kept("dueline-zone", "local");

  root.dataset.zone = zone;
  function applyTheme() {
    root.dataset.theme = theme === "dark" || (theme === "system" && dark.matches) ? "dark" : "light";
  }
  applyTheme();
  dark.addEventListener("change", applyTheme);

  // -- instants -------------------------------------------------------------------------------------------------
  const two = (n) => String(n).padStart(2, "0");
  function wall(at, utc) {
    const get = (name) => at[`get${utc ? "UTC" : ""}${name}`]();
    return {
      day: `${get("FullYear")}-${two(get("Month") + 1)}-${two(get("Date"))}`,
      time: `${two(get("Hours"))}:${two(get("Minutes"))}:${two(get("Seconds"))}`,
      ms: String(get("Milliseconds")).padStart(3, "0"),
    };
  }
  function offset(at) {
    const minutes = -at.getTimezoneOffset();
    const size = Math.abs(minutes);
    return `${minutes < 0 ? "−" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
  }
  function ago(at) {
    const ms = at - Date.now();
    const rounded = (unit) => Math.round(Math.abs(ms) / unit);
    const text =
      rounded(1e3) < 60 ? `${rounded(1e3)} s` : rounded(60e3) < 60 ? `${rounded(60e3)} min`
      : rounded(3600e3) < 48 ? `${rounded(3600e3)} h` : `${rounded(86400e3)} d`;
    return ms >= 0 ? `in ${text}` : `${text} ago`;
  }
  function dayName(at, utc) { // `Wed 2 Dec`, of another year with that
    const year = wall(at, utc).day.slice(0, 4) === wall(new Date(), utc).day.slice(0, 4) ? undefined : "numeric";
    const how = { weekday: "short", day: "numeric", month: "short", year, timeZone: utc ? "UTC" : undefined };
    return at.toLocaleDateString("en-GB", how).replaceAll(",", "");
  }
  const shown = new Set();
  // What fields for instants show and say: in a zone of their own (a schedule's), else in that of the switch.
  const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const clocks = new Map();
  function clock(name) {
    if (!clocks.has(name)) clocks.set(name, new Intl.DateTimeFormat("en-GB", {
      timeZone: name, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    }));
    return clocks.get(name);
  }
  function known(name) { // else that of the switch: the browser may not know a zone, or it is being typed
    try { clock(name || "none"); return name; } catch { return zone === "utc" ? "UTC" : here; }
  }
  function ahead(ms, name) { // by how many ms the clock of the zone is ahead of UTC
    const part = Object.fromEntries(clock(name).formatToParts(ms).map(({ type, value }) => [type, Number(value)]));
    return Date.UTC(part.year, part.month - 1, part.day, part.hour, part.minute, part.second) - Math.floor(ms / 1000) * 1000;
  }
  const DAY_MS = 86400e3;
  function written(ms) {
    const minutes = Math.round(Math.abs(ms) / 60e3);
    return `${ms < 0 ? "-" : "+"}${two(Math.floor(minutes / 60))}:${two(minutes % 60)}`;
  }
  const times = {
    // `2027-03-01T09:00` of a text that is an instant with offset; empty: it is none
    wall(text, own) {
      const at = Date.parse(text);
      if (isNaN(at) || !/([Zz]|[+-]\d\d:\d\d)$/.test(text)) return "";
      const shown = new Date(at + ahead(at, known(own))).toISOString().slice(0, 19);
      return shown.endsWith(":00") ? shown.slice(0, 16) : shown;
    },
    // The instant of a date or wall time; of one that comes twice the first, of one that is skipped what the clock then shows
    instant(wall, own) {
      const [, date, clockTime] = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?))?$/.exec(wall.trim()) ?? [];
      const meant = date === undefined ? NaN : Date.parse(`${date}T${clockTime ?? "00:00"}Z`);
      if (isNaN(meant)) return null;
      const name = known(own);
      if (name === "UTC") return `${new Date(meant).toISOString().slice(0, 19)}Z`;
      const [before, after] = [ahead(meant - DAY_MS, name), ahead(meant + DAY_MS, name)];
      const at = [meant - before, meant - after].find((each) => meant - ahead(each, name) === each) ?? meant - before;
      const there = ahead(at, name);
      return new Date(at + there).toISOString().slice(0, 19) + written(there);
    },
    // The zone, with its offset at the instant that the text says
    zone(text, own) {
      const name = known(own);
      const at = Date.parse(text);
      return name === "UTC" ? name : `${name}, UTC${written(ahead(isNaN(at) ? Date.now() : at, name))}`;
    },
  };
  class DueAt extends HTMLElement {
    static observedAttributes = ["at", "how"];
    connectedCallback() { shown.add(this); this.draw(); }
    disconnectedCallback() { shown.delete(this); }
    attributeChangedCallback() { if (this.isConnected) this.draw(); }
    draw() {
      const text = this.getAttribute("at") ?? "";
      const how = this.getAttribute("how") ?? "day";
      const at = new Date(text);
      if (isNaN(at)) { this.textContent = text; return; }
      const utc = zone === "utc";
      const { day, time, ms } = wall(at, utc);
      const today = wall(new Date(), utc).day === day;
      const main = how === "short" ? `${today ? "" : `${dayName(at, utc)} `}${time.slice(0, time.endsWith(":00") ? 5 : 8)}` : how === "full" ? `${day} ${time}.${ms} ${utc ? "UTC" : offset(at)}` : how === "time" ? `${time}.${ms}`
        : today ? time : `${day} ${time}`;
      const element = document.createElement("time");
      element.dateTime = text;
      element.title = `${text}\n${wall(at, false).day} ${wall(at, false).time} ${offset(at)} your time`;
      element.textContent = how === "rel" ? ago(at) : main; // plain: as a day, without the time from now
      this.replaceChildren(element);
      if (how === "day" || how === "full") {
        const rel = document.createElement("span");
        rel.className = "rel";
        rel.textContent = ` ${ago(at)}`;
        this.append(rel);
      }
    }
  }
  customElements.define("due-at", DueAt);
  const redraw = () => { if (!document.hidden) shown.forEach((each) => each.draw()); };
  setInterval(redraw, 1000);

  // -- switches, menu, copying: by delegation, since Vue draws and redraws the page --------------------------------
  function press(group, value) {
    for (const button of document.querySelectorAll(`button[data-${group}]`))
      button.setAttribute("aria-pressed", String(button.dataset[group] === value));
  }
  function pressAll() { press("theme", theme); press("zone", zone); }
  async function copy(text, button) {
    let done = false;
    try { await navigator.clipboard.writeText(text); done = true; } catch { /* not a secure context: the old way */ }
    if (!done) {
      const area = Object.assign(document.createElement("textarea"), { value: text });
      area.style.position = "fixed";
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button?.focus();
    }
    say(done ? "Copied" : "The browser refused to copy");
    if (button) {
      const before = button.dataset.label ?? (button.dataset.label = button.textContent);
      button.textContent = done ? "copied" : "refused";
      setTimeout(() => { button.textContent = before; }, 1200);
    }
  }
  function say(text) {
    let live = document.getElementById("dl-said");
    if (!live) {
      live = Object.assign(document.createElement("div"), { id: "dl-said", className: "sr" });
      live.setAttribute("role", "status");
      (document.querySelector("main") ?? document.body).append(live);
    }
    live.textContent = text;
  }
  window.dueline = { copy, times, sayNext, keepFields, typedBefore: (label) => typedBefore(label) };
  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    const button = target?.closest("button");
    if (!button) return;
    if (button.dataset.theme && button.closest(".switch")) { theme = button.dataset.theme; keep("dueline-theme", theme); applyTheme(); pressAll(); }
    if (button.dataset.zone) { zone = root.dataset.zone = button.dataset.zone; keep("dueline-zone", zone); pressAll(); redraw(); document.dispatchEvent(new Event("dueline-zone")); }
    if (button.dataset.copy !== undefined) { event.preventDefault(); copy(button.dataset.copy, button); }
    if (button.classList.contains("menu-button")) {
      const open = button.closest(".side").classList.toggle("open");
      button.setAttribute("aria-expanded", String(open));
    }
  });
  document.addEventListener("keydown", (event) => {
    const at = event.target;
    const open = event.key === "Escape" && document.querySelector(".side.open .menu-button");
    if (open) { open.click(); open.focus(); }
    const typing = at instanceof HTMLElement && (at.isContentEditable || /^(input|textarea|select)$/i.test(at.tagName));
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const search = document.querySelector("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  });
  // Vue draws after this script has run, and may draw again.
  new MutationObserver(() => {
    if (document.querySelector(".switch button:not([aria-pressed])")) pressAll();
  }).observe(document, { subtree: true, childList: true });

  // -- what was typed, over a server that was started anew ---------------------------------------------------------
  const KEPT = "dueline-typed";
  const KEPT_MS = 900e3; // whoever comes back later begins anew
  let typed = {};
  try {
    const { at, when, fields } = JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
    if (at === location.href) { // and not the sign-in page on the way back here
      sessionStorage.removeItem(KEPT);
      if (Date.now() - when < KEPT_MS) typed = fields;
    }
  } catch { /* nothing is kept then */ }
  function keepFields() {
    const fields = {};
    for (const field of document.querySelectorAll("main .field")) {
      const input = field.querySelector("input:not([type=checkbox]), textarea, select");
      if (input && !field.closest("dialog")) fields[field.querySelector("label").textContent] = input.value;
    }
    try { sessionStorage.setItem(KEPT, JSON.stringify({ at: location.href, when: Date.now(), fields })); } catch { /* full */ }
  }
  function typedBefore(label) { // once
    const value = typed[label];
    delete typed[label];
    return value;
  }

  // -- a form whose session has ended: whoever has signed in again, in another tab, goes on with what was typed --------
  setInterval(async () => {
    const again = document.hidden ? null : document.querySelector("a[data-again]");
    if (!again) return;
    const answer = await fetch(again.dataset.again).catch(() => null);
    if (answer?.ok) { keepFields(); location.reload(); }
  }, 2000);

  // -- a note that the next page shows ------------------------------------------------------------------------------
  const NOTE = "dueline-note";
  function sayNext(text) { try { sessionStorage.setItem(NOTE, text); } catch { /* full: it is not shown */ } }
  const note = () => {
    let text = null;
    try { text = sessionStorage.getItem(NOTE); sessionStorage.removeItem(NOTE); } catch { /* none */ }
    if (text) window.Quasar?.Notify.create({ message: text, position: "bottom", timeout: 4000, closeBtn: "Close" });
  };
  window.addEventListener("load", () => setTimeout(note, 200));

  // -- a server that is gone, or stands still ----------------------------------------------------------------------
  // NiceGUI loads the page anew when no connection comes about in time, and of a server that is away nothing would be
  // left then, not even what is shown: it is asked until it answers. One that has forgotten the page has it loaded anew.
  const stay = () => {
    const popup = document.getElementById("popup");
    if (!popup) return; // a page without NiceGUI
    if (!window.socket) { setTimeout(stay, 50); return; }
    socket.off("connect_error");
    socket.on("connect_error", (error) => {
      if (error.message === "Implicit handshake failed") { keepFields(); location.reload(); }
      else if (error.message === "timeout") socket.io.opts.transports = ["polling", "websocket"]; // a proxy may block the other
    });
    popup.setAttribute("role", "alert");
    const [title, text] = popup.children;
    title.textContent = "The server is not answering.";
    text.textContent = "This page is out of date. Trying again every few seconds.";
  };
  window.addEventListener("load", stay);

  // -- a hidden tab asks for nothing --------------------------------------------------------------------------------
  const tell = () => {
    if (window.did_handshake && window.emitEvent) emitEvent("seen", !document.hidden);
    else setTimeout(tell, 50);
  };
  document.addEventListener("visibilitychange", () => { tell(); redraw(); });
  if (document.hidden) window.addEventListener("load", tell);
})();
