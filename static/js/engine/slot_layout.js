// Geometry of the carousel: positions of n slots. Pure; angles in radians, lengths in the drawing's units.

/** @typedef {{ radius: number, angle: number, size: number }} SlotPlace */

const OUTER = 212;
const INNER = 128; // leaves the hub with its figures free

/**
 * Places 4 to 256 slots and more: in one ring while there is space, then two, three, four.
 * @param {number} n @returns {{ slots: SlotPlace[], rings: number[] }}
 */
export function layOutSlots(n) {
  const count = n <= 40 ? 1 : n <= 96 ? 2 : n <= 180 ? 3 : Math.max(4, Math.ceil(n / 90));
  const gap = count === 1 ? 0 : Math.min(count === 2 ? 42 : 32, (OUTER - INNER) / (count - 1));
  const rings = Array.from({ length: count }, (_, i) => OUTER - i * gap);
  const whole = rings.reduce((sum, radius) => sum + radius, 0);
  const slots = /** @type {SlotPlace[]} */ ([]);
  rings.forEach((radius, i) => {
    const left = n - slots.length;
    const here = i === count - 1 ? left : Math.min(left, Math.round((n * radius) / whole));
    const room = Math.min((2 * Math.PI * radius) / Math.max(here, 1), count === 1 ? 200 : gap);
    const size = Math.max(3, Math.min(30, room * 0.37));
    for (let k = 0; k < here; k++)
      slots.push({ radius, angle: (2 * Math.PI * (k + i / 2)) / here - Math.PI / 2, size });
  });
  return { slots, rings };
}

/** Returns the radius of the light around an occupied slot. @param {number} size radius of the slot */
export const glowRadius = (size) => size + Math.min(6, size * 0.35);

/**
 * Returns radians per second: grows with the steps per second, up to a comfortable limit.
 * @param {number} stepsPerSecond
 */
export const turnRate = (stepsPerSecond) => 0.38 * (1 - Math.exp(-stepsPerSecond / 40));
