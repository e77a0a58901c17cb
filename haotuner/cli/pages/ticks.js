"use strict";
// Ticks of the axes with whole texts and units. Plotly writes single digits between the powers of ten of a log axis.
const ticksOf = (() => {
  const MULTIPLES = [1, 2, 5, 10], LEAST_SPAN = 5; // of a log axis: a narrower one has even steps
  const UNITS = { 1: "µs", 1e3: "ms", 1e6: "s" }; // by the microseconds in each

  function evenSpots(low, high, most, whole) {
    const least = Math.max((high - low) / most, whole ? 1 : 0), power = 10 ** Math.floor(Math.log10(least));
    const step = power * MULTIPLES.find((multiple) => multiple * power >= least * 0.999), spots = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high * (1 + 1e-9); at += 1) spots.push(Number((at * step).toPrecision(12)));
    return spots;
  }

  function logSpots(low, high, most) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const multiples = 3 * Math.log10(high / low) > most ? [1] : [1, 2, 5], step = multiples.length > 1 ? 1 : Math.ceil((last - first) / most);
    const spots = [];
    for (let power = first; power <= last; power += step) spots.push(...multiples.map((multiple) => Number((multiple * 10 ** power).toPrecision(12))));
    return spots.filter((spot) => spot >= low * 0.999 && spot <= high * 1.001);
  }

  function textOf(value, unit) {
    const time = unit === "µs" && value !== 0, scale = !time || Math.abs(value) < 1e3 ? 1 : Math.abs(value) < 1e6 ? 1e3 : 1e6;
    const number = (value / scale).toLocaleString("en-US", { maximumSignificantDigits: 6 });
    return unit === "x" ? `${number}x` : time ? `${number} ${UNITS[scale]}` : number;
  }

  // `ends` are those of the axis as Plotly has them: exponents on a log axis, in any order. `whole`: all values are integers.
  return (type, ends, most, unit, whole) => {
    const log = type === "log", [low, high] = ends.map((end) => log ? 10 ** Number(end) : Number(end)).sort((one, other) => one - other);
    if (!(high > low)) return null;
    const spots = log && high / low >= LEAST_SPAN ? logSpots(low, high, most) : evenSpots(low, high, most, whole);
    return { tickmode: "array", tickvals: spots, ticktext: spots.map((spot) => textOf(spot, unit)) };
  };
})();
