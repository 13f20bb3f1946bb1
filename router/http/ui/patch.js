/** Changes a part of the page into another one, and leaves alone what is the same in both. */

/**
 * Makes the children of `parent` from the index `from` on like `nodes`, which it may take. Text that only grows stays
 * selected, and code stays where it was scrolled to.
 */
export function patch(parent, from, nodes) {
  nodes.forEach((node, index) => {
    const old = parent.childNodes[from + index];
    if (!old) parent.append(node);
    else if (!old.isEqualNode(node)) change(old, node);
  });
  while (parent.childNodes.length > from + nodes.length) parent.lastChild.remove();
}

function change(old, node) {
  if (old.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE && node.data.startsWith(old.data)) {
    old.appendData(node.data.slice(old.data.length));
  } else if (alike(old, node)) patch(old, 0, [...node.childNodes]);
  else old.replaceWith(node);
}

/** Whether two elements differ in nothing but what is in them. */
function alike(one, other) {
  return one.nodeType === Node.ELEMENT_NODE && one.cloneNode(false).isEqualNode(other.cloneNode(false));
}
