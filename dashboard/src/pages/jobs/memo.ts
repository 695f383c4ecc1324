/** Draws a part again only when what it is given has changed: a long list is drawn anew with every turn of the wheel. */

import { Component, createElement, type ComponentChildren, type ComponentType } from "preact";

export function memo<P extends object>(Inside: (props: P) => ComponentChildren): ComponentType<P> {
  return class Memo extends Component<P> {
    override shouldComponentUpdate(next: Readonly<P>): boolean {
      const names = Object.keys(next) as (keyof P)[];
      return names.length !== Object.keys(this.props).length || names.some((name) => next[name] !== (this.props as P)[name]);
    }
    override render() {
      return createElement(Inside as ComponentType<P>, this.props as P & { children?: ComponentChildren });
    }
  };
}
