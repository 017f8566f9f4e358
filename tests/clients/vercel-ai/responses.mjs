// Turns by the Responses API in Vercel's AI SDK, as it is by default: prints the answers as JSON.
// The second turn names what the first one gave by its ids. First argument: base URL.
import { createOpenAI } from '@ai-sdk/openai';
import * as ai from 'ai';
import { z } from 'zod';

const model = createOpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: 'none' })('helper');
const schema = z.object({ name: z.string(), population: z.number().int() });

async function ask(way, messages) {
  if (way === 'whole') return ai.generateText({ model, messages });
  const stream = ai.streamText({ model, messages });
  for await (const piece of stream.textStream) void piece; // nothing is asked for before
  return { text: await stream.text, response: await stream.response };
}

const found = {};
for (const way of ['whole', 'streamed']) {
  const messages = [{ role: 'user', content: 'Which city?' }];
  const first = await ask(way, messages);
  messages.push(...first.response.messages, { role: 'user', content: 'Once more?' });
  const again = await ask(way, messages);
  found[way] = JSON.parse(first.text);
  found[`${way}, again`] = JSON.parse(again.text);
}
found.object = (await ai.generateObject({ model, schema, prompt: 'Which city?' })).object;
console.log(JSON.stringify(found));
