for (const chart of document.querySelectorAll(".chart")) enhanceChart(chart);
const filters = [...document.querySelectorAll("[data-filter]")];
const cards = [...document.querySelectorAll(".card")];
const update = () => {
  for (const card of cards)
    card.hidden = !filters.every((filter) => !filter.value || card.dataset[filter.dataset.filter] === filter.value);
  document.querySelector("output").textContent = `${cards.filter((card) => !card.hidden).length} of ${cards.length} rows`;
};
for (const filter of filters) filter.addEventListener("change", update);
update();
