// The steps of `millstream_harness.logins` by kafkajs. Usage: node logins.js STEPS
'use strict'

const fs = require('node:fs')
const { Kafka, logLevel } = require('kafkajs')

const PAUSE_MS = 400
const LIMIT_MS = 40_000

function open(step) {
  const ssl = { ca: [fs.readFileSync(step.ca)] }
  if (!step.mechanism) {
    const own = fs.readFileSync(step.certificate)
    Object.assign(ssl, { key: own, cert: own })
  }
  const sasl = step.mechanism && {
    mechanism: step.mechanism.toLowerCase(),
    ...(step.mechanism === 'OAUTHBEARER'
      ? { oauthBearerProvider: async () => ({ value: step.token }) }
      : { username: step.user, password: step.password }),
  }
  return new Kafka({
    clientId: 'kafkajs',
    brokers: [step.bootstrap],
    ssl,
    reauthenticationThreshold: 1000, // by default, it authenticates again for each request of the last ten seconds
    ...(sasl ? { sasl } : {}),
    retry: { retries: 2 },
    logLevel: logLevel.NOTHING,
  })
}

async function write(step, pauseMs = 0) {
  const producer = open(step).producer({ allowAutoTopicCreation: false })
  try {
    await producer.connect()
    for (const value of step.values) {
      await producer.send({ topic: step.topic, messages: [{ value }] })
      await new Promise(resolve => setTimeout(resolve, pauseMs))
    }
  } finally {
    await producer.disconnect()
  }
}

async function read(step, count) {
  const consumer = open(step).consumer({ groupId: step.group })
  const found = []
  try {
    await consumer.connect()
    await consumer.subscribe({ topics: [step.topic], fromBeginning: true })
    await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error(`${found.length} of ${count} records`)), LIMIT_MS).unref()
      consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
      const eachMessage = async ({ message }) => found.push(message.value.toString()) === count && resolve()
      consumer.run({ eachMessage }).catch(reject)
    })
  } finally {
    await consumer.disconnect()
  }
  return found
}

const ACTIONS = {
  write,
  session: step => write(step, PAUSE_MS),
  read: step => read(step, 1),
  'round-trip': async step => {
    await write(step)
    const found = await read(step, step.values.length)
    if (JSON.stringify(found) !== JSON.stringify(step.values)) throw new Error(`read ${JSON.stringify(found)}`)
  },
}

Promise.all(
  JSON.parse(fs.readFileSync(process.argv[2])).map(async step => {
    const result = await ACTIONS[step.action](step).then(
      () => 'ok',
      error => `${error.name}: ${error.message}`.replaceAll('\n', ' '),
    )
    console.log('RESULT', step.name, result)
  }),
).then(() => process.exit(0))
