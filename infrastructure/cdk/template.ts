import { readFileSync } from "node:fs";
import { parse, type CollectionTag, type ScalarTag } from "yaml";

export type Json = Record<string, any>;

const name = (tag: string) => (tag === "Ref" || tag === "Condition" ? tag : `Fn::${tag}`);

const tags = ["Ref", "Sub", "GetAtt", "If", "Equals", "Not", "And", "Condition", "FindInMap"].flatMap((tag) => [
  { tag: `!${tag}`, resolve: (value: string) => ({ [name(tag)]: value }) } satisfies ScalarTag,
  {
    tag: `!${tag}`,
    collection: "seq",
    resolve: (items) => ({ [name(tag)]: (items as any).toJSON() }),
  } satisfies CollectionTag,
]);

/** The stack that template.yaml describes, which the SAM CLI deploys. */
export const template: Json = parse(readFileSync(new URL("../../template.yaml", import.meta.url), "utf8"), {
  customTags: tags,
  logLevel: "error",
});

/** What `!If` has under these conditions, with `!Ref` to a parameter as its default. */
export function resolved(value: any, conditions: Record<string, boolean>): any {
  if (Array.isArray(value)) {
    return value.map((each) => resolved(each, conditions));
  }
  if (value === null || typeof value !== "object") {
    return value;
  }
  if ("Fn::If" in value) {
    const [condition, then, otherwise] = value["Fn::If"];
    if (!(condition in conditions)) {
      throw new Error(`the test does not say whether ${condition}`);
    }
    return resolved(conditions[condition] ? then : otherwise, conditions);
  }
  if ("Ref" in value && value.Ref in template.Parameters) {
    return template.Parameters[value.Ref].Default;
  }
  return Object.fromEntries(
    Object.entries(value)
      .map(([key, each]) => [key, resolved(each, conditions)] as const)
      .filter(([, each]) => each?.Ref !== "AWS::NoValue"),
  );
}
