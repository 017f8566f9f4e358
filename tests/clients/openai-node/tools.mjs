// A tool of its own by `runTools` of OpenAI's library for Node: prints JSON. Argument: base URL.
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: 'none' });
let called = [];
const weather = {
  type: 'function',
  function: {
    name: 'weather',
    description: 'Tells the weather of a city.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
    parse: JSON.parse,
    function: async ({ city }) => {
      called.push(city);
      return `sunny in ${city}`;
    },
  },
};
const messages = [{ role: 'user', content: 'Which weather?' }];

const found = {};
for (const stream of [false, true]) {
  const runner = client.chat.completions.runTools({
    model: 'helper',
    messages,
    stream,
    tools: [weather],
  });
  found[stream ? 'streamed' : 'whole'] = [await runner.finalContent(), ...called];
  called = [];
}
console.log(JSON.stringify(found));
