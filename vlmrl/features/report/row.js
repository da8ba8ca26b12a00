
// A row's page: arrow keys go to the rows beside it, and inside of a group of tokens from token to token.
const follow = (rel) => document.querySelector(`a[rel=${rel}]`)?.click();
const say = (token) => {
  const output = token.closest(".tokens")?.querySelector(".said");
  if (output) output.textContent = token.title;
};
const moveInTokens = (token, key) => {
  const all = [...token.parentElement.children];
  const to = { ArrowRight: all.indexOf(token) + 1, ArrowLeft: all.indexOf(token) - 1, Home: 0, End: all.length - 1 }[key];
  if (!all[to]) return;
  token.tabIndex = -1;
  all[to].tabIndex = 0;
  all[to].focus();
};
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (event.target.matches(".cells .token")) {
    if (!["ArrowRight", "ArrowLeft", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    moveInTokens(event.target, event.key);
  } else if (!event.target.closest("input, select, textarea, audio, video, .wide, dialog")) {
    if (event.key === "ArrowLeft") follow("prev");
    if (event.key === "ArrowRight") follow("next");
  }
});
for (const kind of ["focusin", "pointerover"])
  document.addEventListener(kind, (event) => event.target.matches?.(".cells .token") && say(event.target));
