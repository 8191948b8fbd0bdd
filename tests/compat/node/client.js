// What kafkajs must be able to do, one scenario after the other in one process.
// Usage: node client.js BOOTSTRAP. Prints "PASS name" or "FAIL name: why" a scenario.
'use strict'

const assert = require('node:assert/strict')
const { Kafka, CompressionCodecs, CompressionTypes, AssignerProtocol, logLevel } = require('kafkajs')
const LZ4Codec = require('kafkajs-lz4')
const SnappyCodec = require('kafkajs-snappy')
const zstd = require('@bokuweb/zstd-wasm')

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.LZ4] = new LZ4Codec().codec
// @kafkajs/zstd wraps cppzst, which does not compile for Node.js 20 or newer.
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async ({ buffer }) => Buffer.from(zstd.compress(buffer, 3)),
  decompress: async buffer => Buffer.from(zstd.decompress(buffer)),
})

const COUNT = 200
const BASE_TIMESTAMP = 1_700_000_000_000
const DEADLINE_MS = 30_000

const kafka = new Kafka({ clientId: 'kafkajs', brokers: [process.argv[2]], logLevel: logLevel.NOTHING })
const admin = kafka.admin()
let topics = 0

async function create(name, numPartitions = 1, configEntries = []) {
  const topic = `kafkajs-${name}-${process.pid}-${++topics}`
  await admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: 1, configEntries }] })
  return topic
}

function sample(i) {
  return {
    key: i % 10 === 9 ? null : `key-${i % 7}`,
    value: i % 25 === 23 ? null : `value-${i} ${'x'.repeat(i * 3)}`,
    headers: i % 3 ? {} : { trace: `${i}`, empty: '' },
    timestamp: `${BASE_TIMESTAMP + i}`,
  }
}

async function produce(topic, settings = {}, sending = {}) {
  const producer = kafka.producer({ allowAutoTopicCreation: false, ...settings })
  await producer.connect()
  try {
    const messages = Array.from({ length: COUNT }, (_, i) => sample(i))
    return await producer.send({ topic, messages, acks: -1, ...sending })
  } finally {
    await producer.disconnect()
  }
}

async function until(what, holds) {
  const deadline = Date.now() + DEADLINE_MS
  while (!holds()) {
    assert(Date.now() < deadline, what)
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}

function newConsumer(groupId) {
  return kafka.consumer({ groupId, heartbeatInterval: 100, maxWaitTimeInMs: 50, rebalanceTimeout: 5000 })
}

/** Runs a consumer from the earliest record on; returns it with what it takes and owns. */
async function consume(topic, groupId, autoCommit = false) {
  const consumer = newConsumer(groupId)
  const taken = []
  const state = { consumer, taken, owned: [] }
  consumer.on(consumer.events.GROUP_JOIN, event => {
    state.owned = event.payload.memberAssignment[topic] || []
  })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({ autoCommit, eachMessage: async ({ partition, message }) => taken.push({ partition, ...message }) })
  return state
}

async function takeAll(topic, count = COUNT) {
  const { consumer, taken } = await consume(topic, `group-${topic}`)
  await until(`${count} records`, () => taken.length >= count)
  await consumer.disconnect()
  return taken
}

const text = value => (value === null || value === undefined ? null : value.toString())

async function codec(compression) {
  const topic = await create('codec')
  await produce(topic, {}, { compression })
  const taken = await takeAll(topic)
  taken.forEach((message, i) => {
    const sent = sample(i)
    assert.equal(message.offset, `${i}`)
    assert.equal(text(message.key), sent.key)
    assert.equal(text(message.value), sent.value)
    assert.equal(message.timestamp, sent.timestamp)
    const headers = Object.fromEntries(Object.entries(message.headers).map(([name, value]) => [name, text(value)]))
    assert.deepEqual(headers, sent.headers)
  })
  assert.equal(taken.length, COUNT)
}

const scenarios = {
  'codec-none': () => codec(CompressionTypes.None),
  'codec-gzip': () => codec(CompressionTypes.GZIP),
  'codec-snappy': () => codec(CompressionTypes.Snappy),
  'codec-lz4': () => codec(CompressionTypes.LZ4),
  'codec-zstd': () => codec(CompressionTypes.ZSTD),

  keyed: async () => {
    const topic = await create('keyed', 4)
    await produce(topic)
    const partitions = new Map()
    for (const { key, partition } of await takeAll(topic)) {
      if (key === null) continue
      assert.equal(partitions.get(text(key)) ?? partition, partition)
      partitions.set(text(key), partition)
    }
    assert(new Set(partitions.values()).size > 1)
  },

  idempotent: async () => {
    const topic = await create('idempotent')
    await produce(topic, { idempotent: true, maxInFlightRequests: 1 })
    assert.equal((await takeAll(topic)).length, COUNT)
  },

  transactions: async () => {
    const topic = await create('transactions')
    const producer = kafka.producer({ transactionalId: topic, idempotent: true, maxInFlightRequests: 1 })
    await producer.connect()
    try {
      for (const value of ['first', 'aborted', 'second']) {
        const transaction = await producer.transaction()
        await transaction.send({ topic, messages: [{ value }] })
        await (value === 'aborted' ? transaction.abort() : transaction.commit())
      }
    } finally {
      await producer.disconnect()
    }
    assert.deepEqual((await takeAll(topic, 2)).map(message => text(message.value)), ['first', 'second'])
  },

  'positions-in-transactions': async () => {
    const [source, target] = [await create('copied'), await create('copies')]
    await produce(source)
    const group = `group-${source}`
    const producer = kafka.producer({ transactionalId: target, idempotent: true, maxInFlightRequests: 1 })
    await producer.connect()
    try {
      for (const [position, commits] of [['10', true], ['20', false]]) {
        const transaction = await producer.transaction()
        await transaction.send({ topic: target, messages: [{ value: position }] })
        const partitions = [{ partition: 0, offset: position }]
        await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic: source, partitions }] })
        await (commits ? transaction.commit() : transaction.abort())
      }
    } finally {
      await producer.disconnect()
    }
    const [found] = await admin.fetchOffsets({ groupId: group, topics: [source] })
    assert.equal(found.partitions[0].offset, '10')
    assert.deepEqual((await takeAll(target, 1)).map(message => text(message.value)), ['10'])
  },

  resume: async () => {
    const topic = await create('resume')
    const groupId = `group-${topic}`
    await produce(topic)
    const first = await consume(topic, groupId)
    await until('50 records', () => first.taken.length >= 50)
    await first.consumer.commitOffsets([{ topic, partition: 0, offset: '50', metadata: 'half-way' }])
    await first.consumer.disconnect()
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
    assert.deepEqual(partitions, [{ partition: 0, offset: '50', metadata: 'half-way' }])
    const second = await consume(topic, groupId)
    await until('a record', () => second.taken.length > 0)
    await second.consumer.disconnect()
    assert.equal(second.taken[0].offset, '50')
  },

  share: async () => {
    const topic = await create('share', 4)
    const groupId = `group-${topic}`
    const first = await consume(topic, groupId)
    await until('four partitions', () => first.owned.length === 4)
    const second = await consume(topic, groupId)
    await until('two partitions each', () => first.owned.length === 2 && second.owned.length === 2)
    await second.consumer.disconnect()
    await until('four partitions again', () => first.owned.length === 4)
    await first.consumer.disconnect()
  },

  rebalances: async () => {
    const topic = await create('rebalances', 6)
    const groupId = `group-${topic}`
    const all = []
    const members = []
    const enter = async count => {
      const entered = await Promise.all(Array.from({ length: count }, () => consume(topic, groupId, true)))
      members.push(...entered)
      all.push(...entered)
    }
    const shared = shares => {
      const owned = members.flatMap(one => one.owned)
      const sizes = members.map(one => one.owned.length).sort()
      return new Set(owned).size === 6 && sizes.join() === shares.join()
    }
    const seen = () => new Set(all.flatMap(one => one.taken.map(each => `${each.partition}:${each.offset}`))).size
    await enter(3)
    await until('two partitions each', () => shared([2, 2, 2]))
    await produce(topic)
    await until('the first records', () => seen() === COUNT)
    await members.pop().consumer.disconnect()
    await until('three partitions each', () => shared([3, 3]))
    await produce(topic)
    await until('the records after one left', () => seen() === 2 * COUNT)
    await enter(2)
    await until('one or two partitions each', () => shared([1, 1, 2, 2]))
    await produce(topic)
    await until('the records after two came', () => seen() === 3 * COUNT)
    await Promise.all(members.map(one => one.consumer.disconnect()))
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
    assert.equal(partitions.reduce((sum, one) => sum + Number(one.offset), 0), 3 * COUNT)
  },

  'offsets-by-timestamp': async () => {
    const topic = await create('times')
    await produce(topic)
    const [found] = await admin.fetchTopicOffsetsByTimestamp(topic, BASE_TIMESTAMP + 77)
    // All records are in one batch, which kafkajs looks up by ListOffsets: the record's own offset.
    assert.equal(found.offset, '77')
    const [ends] = await admin.fetchTopicOffsets(topic)
    assert.deepEqual([ends.low, ends.high], ['0', `${COUNT}`])
  },

  'admin-topics': async () => {
    const topic = await create('admin', 3, [{ name: 'retention.ms', value: '3600000' }])
    const described = await admin.fetchTopicMetadata({ topics: [topic] })
    assert.deepEqual(described.topics[0].partitions.map(one => one.leader), [1, 1, 1])
    await admin.createPartitions({ topicPartitions: [{ topic, count: 5 }] })
    assert.equal((await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length, 5)
    const { resources } = await admin.describeConfigs({
      includeSynonyms: true,
      resources: [{ type: 2, name: topic, configNames: ['retention.ms'] }],
    })
    assert.equal(resources[0].configEntries[0].configValue, '3600000')
    await admin.deleteTopics({ topics: [topic] })
    assert(!(await admin.listTopics()).includes(topic))
  },

  'admin-groups': async () => {
    const topic = await create('groups')
    const groupId = `group-${topic}`
    await produce(topic)
    const { consumer, taken } = await consume(topic, groupId)
    await until('records', () => taken.length > 0)
    const { groups } = await admin.describeGroups([groupId])
    assert.equal(groups[0].state, 'Stable')
    const assignment = AssignerProtocol.MemberAssignment.decode(groups[0].members[0].memberAssignment)
    assert.deepEqual(assignment.assignment, { [topic]: [0] })
    await assert.rejects(admin.deleteGroups([groupId]), error => error.groups[0].errorCode === 68) // NON_EMPTY_GROUP
    await consumer.disconnect()
    assert((await admin.listGroups()).groups.some(group => group.groupId === groupId))
    await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '5' }] })
    const position = async () => (await admin.fetchOffsets({ groupId, topics: [topic] }))[0].partitions[0].offset
    assert.equal(await position(), '5')
    await admin.resetOffsets({ groupId, topic })
    assert.equal(await position(), '-1') // kafkajs commits -1 for "latest"
    await admin.resetOffsets({ groupId, topic, earliest: true })
    assert.equal(await position(), '-2')
    await admin.deleteGroups([groupId])
    assert.equal((await admin.describeGroups([groupId])).groups[0].state, 'Dead')
    assert.equal(await position(), '-1')
  },

  'admin-cluster': async () => {
    const { brokers, controller, clusterId } = await admin.describeCluster()
    assert.deepEqual(brokers.map(broker => broker.nodeId), [1])
    assert.equal(controller, 1)
    assert(clusterId)
    const topic = await create('delete-records')
    await produce(topic)
    await admin.fetchTopicOffsets(topic) // kafkajs deletes only where it already knows the leader
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '60' }] })
    assert.equal((await admin.fetchTopicOffsets(topic))[0].low, '60')
  },
}

async function main() {
  await zstd.init()
  await admin.connect()
  for (const [name, scenario] of Object.entries(scenarios)) {
    try {
      await scenario()
      console.log(`PASS ${name}`)
    } catch (error) {
      console.log(`FAIL ${name}: ${String(error.stack).replaceAll('\n', ' | ')}`)
    }
  }
  await admin.disconnect()
  process.exit(0)
}

main()
