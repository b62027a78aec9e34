document.querySelectorAll("table.sort").forEach(function (table) {
  var heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach(function (head, column) {
    var button = document.createElement("button");
    button.textContent = head.textContent;
    head.textContent = "";
    head.append(button);
    button.onclick = function () {
      var up = head.getAttribute("aria-sort") === "descending";
      heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      var key = function (row) {
        var cell = row.cells[column];
        return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
      };
      var rows = Array.from(table.tBodies[0].rows);
      rows.sort(function (a, b) {
        var x = key(a), y = key(b);
        var order = typeof x === "number" ? x - y : x.localeCompare(y);
        return up ? order : -order;
      });
      table.tBodies[0].append.apply(table.tBodies[0], rows);
    };
  });
});
document.querySelectorAll(".time").forEach(function (chart) {
  var plot = chart.querySelector(".plot"), output = chart.querySelector("output");
  var cursor = chart.querySelector(".cursor"), values = chart.dataset.values.split("|");
  plot.onpointermove = function (event) {
    var box = plot.getBoundingClientRect();
    var at = Math.floor((event.clientX - box.left) / box.width * values.length);
    at = Math.min(values.length - 1, Math.max(0, at));
    output.textContent = values[at];
    cursor.style.left = (at + 0.5) / values.length * 100 + "%";
    cursor.hidden = false;
  };
  plot.onpointerleave = function () { output.textContent = ""; cursor.hidden = true; };
});
