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
  if ("Fn::FindInMap" in value) {
    const [mapping, first, second] = resolved(value["Fn::FindInMap"], conditions);
    return template.Mappings[mapping][first][second];
  }
  return Object.fromEntries(
    Object.entries(value)
      .map(([key, each]) => [key, resolved(each, conditions)] as const)
      .filter(([, each]) => each?.Ref !== "AWS::NoValue"),
  );
}

/**
 * An alarm's definition, in which `named` names what it refers to: a logical id, or one and its attribute. Its name and its
 * actions are left out. Each alarm has all of the fields.
 */
export function definition(alarm: Json, named: (id: string) => string): Json {
  const text = (value: any): string =>
    typeof value === "string"
      ? value
      : "Fn::Join" in value
        ? value["Fn::Join"][1].map(text).join("")
        : "Fn::Sub" in value
          ? value["Fn::Sub"].replace(/\$\{(.*?)\}/g, (_: string, id: string) => template.Parameters[id]?.Default ?? named(id))
          : named(value.Ref ?? value["Fn::GetAtt"]);
  const [query] = alarm.Metrics ?? [];
  const dimensions: Json[] | undefined = alarm.Dimensions;
  return {
    AlarmDescription: text(alarm.AlarmDescription),
    ComparisonOperator: alarm.ComparisonOperator,
    DatapointsToAlarm: alarm.DatapointsToAlarm ?? null,
    Dimensions: dimensions ? Object.fromEntries(dimensions.map(({ Name, Value }) => [Name, text(Value)])) : null,
    EvaluationPeriods: alarm.EvaluationPeriods,
    Expression: query ? text(query.Expression) : null,
    MetricName: alarm.MetricName ?? null,
    Namespace: alarm.Namespace ?? null,
    Period: alarm.Period ?? query.Period,
    Statistic: alarm.Statistic ?? null,
    Threshold: alarm.Threshold,
    TreatMissingData: alarm.TreatMissingData,
  };
}

const [source, variables] = template.Resources.Overview.Properties.DashboardBody["Fn::Sub"];

/** The dashboard that template.yaml describes, for functions that are called FUNCTIONS. */
export const dashboard: Json = JSON.parse(
  source
    .replace(/\$\{(Each|By\w+)\}/g, (_: string, variable: string) =>
      variables[variable]["Fn::Sub"].replace(/\(.*\)/s, '(\\"FUNCTIONS\\")'),
    )
    .replaceAll("${NightlyReport}", "FUNCTIONS")
    .replace("${Holders}", "")
    .replaceAll("${!", "${"),
);

/** The widget of the holders, which stands in place of `Holders`, after a comma. */
export const holders: Json = JSON.parse(variables.Holders["Fn::If"][1]["Fn::Sub"].replace(",", ""));

/** A custom widget without the ARN of its function. */
export function withoutEndpoint({ properties: { endpoint, ...properties }, ...rest }: Json): Json {
  return { ...rest, properties };
}

/** A widget's title, its axes and its metrics: each an expression or the names of a metric, its statistic and its label. */
export function widget({ properties: { title, yAxis, metrics, stat } }: Json): Json {
  return {
    title,
    yAxis,
    metrics: metrics.map((metric: any[]) => {
      const { expression, label, stat: own } = metric.at(-1);
      return `${expression ?? [...metric.slice(0, -1), own ?? stat].join(" ")}: ${label}`;
    }),
  };
}

/** The widgets of template.yaml with these titles, in its order: of one function, and of the lock table. */
export function expectedWidgets(titles: string[]): Json[] {
  // The template also has other functions, an API and the data table, which is not one of locks.
  const others = /\$\{(?!PROP|LockTable)/;
  const widgets: Json[] = dashboard.widgets.map(widget);
  return widgets
    .filter(({ title }) => titles.includes(title))
    .map(({ metrics, ...rest }) => ({ ...rest, metrics: metrics.filter((each: string) => !others.test(each)) }));
}
